"""The demo's backbone: a ViT of 4 layers and 96 channels with LaPE inside a ViT-Adapter; trained from scratch."""

dims = 96
# A name of its own: a config may inherit ``model`` from one base file only, and the detector takes its heads from one.
micro_backbone = dict(
    type='mmlape.ViTAdapter',
    vit=dict(
        type='mmlape.VisionTransformer',
        arch=dict(embed_dims=dims, depth=4, num_heads=3, mlp_ratio=4),
        img_size=96,
        patch_size=16,
        with_cls_token=False,
        final_norm=False,
        layer_scale=True,
        joining=dict(type='mmlape.LaPE'),
    ),
    conv_inplanes=32,
    num_points=4,
    deform_num_heads=6,
    deform_ratio=0.5,
    interaction_indexes=[[0, 0], [1, 1], [2, 2], [3, 3]],
)
