"""ViT-B of DINOv2 in ViT-Adapter-B, in the place of ``dinov2-s_windows.py``."""

_base_ = './dinov2-s_windows.py'

dims = 768
vit_adapter = dict(
    vit=dict(
        arch='deit-base',
        drop_path_rate=0.3,
        init_cfg=dict(model='vit_base_patch14_dinov2.lvd142m'),
    ),
    deform_num_heads=12,
    deform_ratio=0.5,
)
