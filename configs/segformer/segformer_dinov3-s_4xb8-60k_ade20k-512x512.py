"""SegFormer's head, DINOv3-S, plain. ADE20K, 60,000 iterations, 4 GPUs x 8 images.

There is no published figure for this row.
"""

_base_ = [
    '../foundation/upernet_dinov3-s_4xb8-60k_ade20k-512x512.py',
    '../_base_/models/segformer.py',
]

model = dict(
    decode_head=dict(_base_.segformer, _delete_=True, in_channels=[384] * 4),
    auxiliary_head=None,
)
