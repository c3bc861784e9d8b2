"""SegFormer's head, Swin-T. ADE20K, 160,000 iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../swin/upernet_swin-t_8xb2-160k_ade20k-512x512.py',
    '../_base_/models/segformer.py',
]

model = dict(
    decode_head=dict(_base_.segformer, _delete_=True, in_channels=[96, 192, 384, 768]),
    auxiliary_head=None,
)
