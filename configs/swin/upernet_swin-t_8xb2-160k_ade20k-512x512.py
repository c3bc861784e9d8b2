"""UPerNet, Swin-T plain. ADE20K, 160,000 iterations, 8 GPUs x 2 images.

Published (MMSegmentation, configs/swin): mIoU 44.41.
"""

_base_ = [
    '../_base_/models/upernet_swin-t.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/schedule_160k_adamw.py',
    '../_base_/default_runtime_mmseg.py',
]
