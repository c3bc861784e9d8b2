"""UPerNet, PVT-Small with DTN in stages 1 to 3. ADE20K, 160,000 iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/upernet_pvt-t.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/schedule_160k_adamw.py',
    '../_base_/default_runtime_mmseg.py',
]

model = dict(
    backbone=dict(
        arch='small',
        norm_cfg=dict(_delete_=True, type='mmlape.DTN'),
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_small.pth'
        ),
    )
)
