"""ViT-Adapter-Ti around a DeiT-Ti with ImageNet-1K weights, under a name of its own: ``vit_adapter``.

A config may inherit ``model`` from one base file only, and the detectors and segmentors take their heads from one. This
is the detection flavour: all layers of the ViT but 2, 5, 8 and 11 attend in windows of 14 x 14 patches.
"""

vit_adapter = dict(
    type='mmlape.ViTAdapter',
    vit=dict(
        type='mmlape.VisionTransformer',
        arch='deit-tiny',
        img_size=224,
        patch_size=16,
        with_cls_token=False,
        final_norm=False,
        layer_scale=True,
        drop_path_rate=0.1,
        window_size=[14, 14, None] * 4,
        joining=dict(type='mmlape.DefaultJoining'),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='deit',
            checkpoint='https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth',
        ),
    ),
    conv_inplanes=64,
    num_points=4,
    deform_num_heads=6,
    cffn_ratio=0.25,
    deform_ratio=1.0,
    interaction_indexes=[[0, 2], [3, 5], [6, 8], [9, 11]],
    vit_feature='last',
    norm_cfg=dict(type='SyncBN', requires_grad=True),
)
