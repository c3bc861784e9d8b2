"""ViT-Adapter-S, in the place of ``vit-adapter_deit-t.py``."""

_base_ = './vit-adapter_deit-t.py'

vit_adapter = dict(
    vit=dict(
        arch='deit-small',
        drop_path_rate=0.2,
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth'
        ),
    ),
)
