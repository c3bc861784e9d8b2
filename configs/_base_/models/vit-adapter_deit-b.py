"""ViT-Adapter-B, in the place of ``vit-adapter_deit-t.py``."""

_base_ = './vit-adapter_deit-t.py'

vit_adapter = dict(
    vit=dict(
        arch='deit-base',
        drop_path_rate=0.3,
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth'
        ),
    ),
    deform_num_heads=12,
    deform_ratio=0.5,
)
