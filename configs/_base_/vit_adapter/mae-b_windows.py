"""ViT-B of MAE (ImageNet-1K) in ViT-Adapter-B, the detection flavour, without layer scale and further extractors."""

_base_ = '../models/vit-adapter_deit-b.py'

dims = 768
vit_adapter = dict(
    vit=dict(
        layer_scale=False,
        drop_path_rate=0.1,
        init_cfg=dict(
            _delete_=True,
            type='mmlape.Pretrained',
            source='timm',
            model='vit_base_patch16_224.mae',
        ),
    ),
    num_extra_extractors=0,
)
