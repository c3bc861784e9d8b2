"""Options of published configs with another name or place here; errors of unknown options and docs/guide.md tell them.

Names are those of ViT-Adapter's, PVT's and Swin's own code, of MMDetection, MMSegmentation and timm. Each has what to
write here, then remarks after a semicolon; an empty text says that it is left out.
"""

_WEIGHTS = "init_cfg=dict(type='mmlape.Pretrained', source=..., checkpoint=...)"
_SIZES = 'embed_dim embed_dims depth depths num_layers num_stages num_heads mlp_ratio mlp_ratios sr_ratios'
_WINDOWS = 'vit=dict(window_size=[14, 14, None] * 4); None where window_attn is False'
_BEIT = "vit=dict(arch='beit_large_patch16_224', layer_scale=1e-6)"
NETWORK: dict[str, str] = {
    **dict.fromkeys(_SIZES.split(), "arch='...'; or arch=dict(...) with all sizes"),
    **dict.fromkeys(('pretrain_img_size', 'pretrain_size'), 'img_size=...'),
    **dict.fromkeys(('ape', 'use_abs_pos_emb', 'use_abs_pos_embed'), 'position=dict(type=...)'),
    **dict.fromkeys(('act_cfg', 'act_layer'), 'mlp=dict(act=...)'),
    **dict.fromkeys(('num_classes', 'convert_weights', 'qk_scale', 'patch_norm'), ''),
    'pretrained': f'{_WEIGHTS}; and in MMSegmentation model.pretrained=None',
    'drop_path': 'drop_path_rate=...',
    'in_chans': 'in_channels=...',
    'norm_layer': "norm_cfg=dict(type='mmlape.LN')",
    'use_checkpoint': 'with_cp=True',
    'class_token': 'with_cls_token=...',
    'reg_tokens': 'num_registers=...',
    'init_values': 'layer_scale=...',
    'global_pool': 'out_type=...',
    'window_attn': 'window_size=[14, 14, None] * 4; None where it is False',
}
ADAPTER: dict[str, str] = {
    **dict.fromkeys(
        ('embed_dim', 'depth', 'num_heads', 'mlp_ratio'),
        "vit=dict(arch='deit-small'); or arch=dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4)",
    ),
    'patch_size': 'vit=dict(patch_size=16)',
    **dict.fromkeys(('img_size', 'pretrain_size'), 'vit=dict(img_size=224)'),
    'drop_path_rate': 'vit=dict(drop_path_rate=0.2)',
    'layer_scale': 'vit=dict(layer_scale=True); their default',
    **dict.fromkeys(('window_attn', 'window_size'), _WINDOWS),
    'pretrained': f'vit=dict({_WEIGHTS})',
    'conv_inplane': 'conv_inplanes=64',
    'n_points': 'num_points=4',
    'interact_indexes': 'interaction_indexes=[[0, 2], [3, 5], [6, 8], [9, 11]]',
    'use_extra_extractor': 'num_extra_extractors=2; 0 if it is False',
    'add_vit_feature': "vit_feature='last'; 'per_stage' in segmentation",
    **dict.fromkeys(
        ('use_abs_pos_emb', 'use_rel_pos_bias', 'init_values', 'qkv_bias'), f'{_BEIT}; for BEiT'
    ),
    'with_cffn': '',
}
