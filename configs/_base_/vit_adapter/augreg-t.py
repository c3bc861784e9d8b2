"""ViT-Ti of AugReg (ImageNet-21K and 1K) in ViT-Adapter-T, the segmentation flavour."""

_base_ = '../models/vit-adapter_deit-t.py'

dims = 192
vit_adapter = dict(
    vit=dict(
        window_size=None,
        init_cfg=dict(
            _delete_=True,
            type='mmlape.Pretrained',
            source='timm',
            model='vit_tiny_patch16_224.augreg_in21k_ft_in1k',
        ),
    ),
    vit_feature='per_stage',
)
