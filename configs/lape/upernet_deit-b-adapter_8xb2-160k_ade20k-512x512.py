"""UPerNet, ViT-Adapter-B, default joining of the position embedding. ADE20K, 160K iterations, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, Table 3): mIoU 48.8.
"""

_base_ = [
    '../_base_/models/upernet_deit-b-adapter.py',
    '../_base_/datasets/ade20k_multiple-of-32.py',
    '../_base_/schedules/schedule_160k_layer-decay.py',
    '../_base_/default_runtime_mmseg.py',
]
