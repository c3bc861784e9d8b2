"""BEiT-L (ImageNet-22K) in ViT-Adapter-L, the segmentation flavour: a class token and relative positions in all layers,
for the whole grid of a crop."""

dims = 1024
vit_adapter = dict(
    type='mmlape.ViTAdapter',
    vit=dict(
        type='mmlape.VisionTransformer',
        arch='beit_large_patch16_224.in22k_ft_in22k',
        layer_scale=1e-6,
        drop_path_rate=0.3,
        init_cfg=dict(type='mmlape.Pretrained', source='timm'),
    ),
    deform_num_heads=16,
    deform_ratio=0.5,
    interaction_indexes=[[0, 5], [6, 11], [12, 17], [18, 23]],
    vit_feature='per_stage',
    norm_cfg=dict(type='SyncBN', requires_grad=True),
    with_cp=True,
)
