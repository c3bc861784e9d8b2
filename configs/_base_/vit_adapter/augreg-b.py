"""ViT-B of AugReg, pre-trained at 384 x 384, in ViT-Adapter-B, in the place of ``augreg-t.py``."""

_base_ = './augreg-t.py'

dims = 768
vit_adapter = dict(
    vit=dict(
        arch='deit-base',
        img_size=384,
        drop_path_rate=0.3,
        init_cfg=dict(model='vit_base_patch16_384.augreg_in21k_ft_in1k'),
    ),
    deform_num_heads=12,
    deform_ratio=0.5,
)
