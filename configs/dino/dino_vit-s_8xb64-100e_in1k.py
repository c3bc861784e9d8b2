"""DINO of ViT-S (6 heads, 384 channels) with LayerNorm. ImageNet-1K without labels, 100 epochs, 8 GPUs x 64 images.

There is no published figure for this row: Table 7 of DTN (ICLR 2022) evaluates by a linear classifier.
"""

_base_ = [
    '../_base_/models/dino_vit-s.py',
    '../_base_/datasets/imagenet_multi-crop.py',
    '../_base_/schedules/schedule_dino.py',
    '../_base_/default_runtime_mmpretrain.py',
]

custom_imports = dict(imports=['mmlape', 'mmlape.research.pretraining.dino'])
custom_hooks = [
    dict(type='mmlape.DINOGradientsHook', max_norm=3.0, freeze_last_layer=1),
    dict(type='mmlape.KNNHook', dataloader=_base_.knn_dataloader),
]
# The log shows means of 10 steps, as it does of losses.
log_processor = dict(
    custom_cfg=[
        dict(data_src=name, method_name='mean', window_size=10)
        for name in ('teacher_entropy', 'divergence')
    ]
)
# The table has epochs 20, 40, 60, 80 and 100.
default_hooks = dict(checkpoint=dict(interval=10, max_keep_ckpts=-1))
