"""PVTv2-B3 with LayerNorm. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 9): top-1 83.2.
"""

_base_ = './pvt-t_8xb128_in1k.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmlape.PyramidVisionTransformerV2',
        arch='b3',
        out_type='avg',
        out_indices=3,
        drop_path_rate=0.3,
        norm_cfg=dict(type='mmlape.LN', eps=1e-6),
    ),
    head=dict(type='LinearClsHead'),
)
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
