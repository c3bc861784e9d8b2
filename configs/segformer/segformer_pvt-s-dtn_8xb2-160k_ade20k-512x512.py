"""SegFormer's head, PVT-Small with DTN in stages 1 to 3. ADE20K, 160,000 iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../dtn/upernet_pvt-s-dtn_8xb2-160k_ade20k-512x512.py',
    '../_base_/models/segformer.py',
]

model = dict(
    decode_head=dict(_base_.segformer, _delete_=True, in_channels=[64, 128, 320, 512]),
    auxiliary_head=None,
)
