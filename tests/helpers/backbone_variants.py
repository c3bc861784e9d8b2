"""Small backbones of every kind."""

from functools import partial

from torch import nn

from mmlape.registry import MODELS

ARCH = dict(embed_dims=24, depth=4, num_heads=3, mlp_ratio=2)
ADAPTER = dict(
    type='mmlape.ViTAdapter',
    vit=dict(
        type='mmlape.VisionTransformer',
        arch=ARCH,
        img_size=64,
        with_cls_token=False,
        final_norm=False,
        layer_scale=True,
    ),
    conv_inplanes=8,
    interaction_indexes=[[0, 0], [1, 1], [2, 2], [3, 3]],
)
JOININGS = {
    'default': dict(type='mmlape.DefaultJoining'),
    'lape': dict(type='mmlape.LaPE'),
    'lape-sharing': dict(type='mmlape.LaPE', progressive=False),
    'lape-warm-affine': dict(type='mmlape.LaPEWarmStart'),
    'lape-warm-gate': dict(type='mmlape.LaPEWarmStart', construction='gate'),
    'shared': dict(type='mmlape.SharedJoining'),
    'unshared': dict(type='mmlape.UnsharedJoining'),
    'lape-eta-2': dict(type='mmlape.LaPE', layers=2),
}

DTN = dict(type='mmlape.DTN')


# Position inside the attention.
ATTENTION_POSITIONS = {
    'relative': dict(type='mmlape.RelativePositionBias', layers=[0, 2]),
    'quadratic': dict(type='mmlape.QuadraticBias', position_init='local'),
    'gabor': dict(type='mmlape.GaborAttention', layers=3),
    'gabor-2,3,4': dict(type='mmlape.GaborAttention', parts='2,3,4', layers=2),
}


def _build(name, **options):
    return MODELS.build(dict(options, type=f'mmlape.{name}'))


def build_adapter(vit=None, **options):
    """A micro ViT-Adapter; ``vit`` holds options of the ViT inside."""
    config = dict(ADAPTER, **options)
    config['vit'] = dict(ADAPTER['vit'], **(vit or {}))
    return MODELS.build(config)


# Micro networks, which take further options.
build_vit = partial(_build, 'VisionTransformer', arch=ARCH, img_size=64)
CEIT_STEM = dict(type='mmlape.ImageToTokens', hidden_channels=8)
build_ceit = partial(_build, 'CeiT', arch=ARCH, img_size=64, stem=CEIT_STEM)
LEVIT_ARCH = dict(embed_dims=[16, 24, 32], depths=[1, 2, 1], num_heads=[2, 5, 3], key_dims=4)


build_levit = partial(_build, 'LeViT', arch=LEVIT_ARCH, img_size=64)
PYRAMID_ARCH = dict(
    embed_dims=[8, 16, 20, 32],
    depths=[1, 2, 1, 1],
    num_heads=[1, 2, 5, 8],
    mlp_ratios=[2, 2, 2, 2],
    sr_ratios=[8, 4, 2, 1],
)
# Its stages have one or two layers.
PYRAMID_JOININGS = {name: joining for name, joining in JOININGS.items() if 'eta' not in name}


def build_pvt(version='', **options):
    """A micro PVT; ``version='V2'`` for PVTv2."""
    sizes = dict(arch=PYRAMID_ARCH, img_size=64)
    return _build(f'PyramidVisionTransformer{version}', **{**sizes, **options})


SWIN_ARCH = dict(
    embed_dims=8, depths=[1, 2, 2, 1], num_heads=[1, 2, 4, 4], mlp_ratio=2, window_size=3
)


build_swin = partial(_build, 'SwinTransformer', arch=SWIN_ARCH, img_size=64)
T2T_ARCH = dict(embed_dims=16, depth=3, num_heads=2, mlp_ratio=2)


build_t2t = partial(_build, 'T2TViT', arch=T2T_ARCH, img_size=64, token_dims=8)
# Of patches and without a class token.
build_compact = partial(_build, 'CompactTransformer', arch=dict(ARCH, img_size=32))


def ids_of_images(model, arguments):
    """Token ids ``(B, 1, 1, T)``, padding among them, in place of images: a forward pre-hook for sequences."""
    (images,) = arguments
    rows = images[:, :1].flatten(2)[:, :, None]
    return (rows[..., : images.shape[2] + images.shape[3]].abs().mul(6).floor().clamp(max=15),)


def build_sequence(**options):
    """A micro transformer for sequences of token ids, which makes them of images."""
    model = _build('SequenceTransformer', **{'arch': ARCH, 'out_type': 'raw', **options})
    model.register_forward_pre_hook(ids_of_images)
    return model


def randomise(model):
    """Initial values hide errors: norms are equal, biases zero."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


def count_parameters(*modules):
    """Number of values in all of them."""
    return sum(p.numel() for module in modules for p in module.parameters())


# name: how to build it. Every variant goes through the same tests.
VARIANTS = {
    **{f'vit-{name}': lambda j=j: build_vit(joining=j) for name, j in JOININGS.items()},
    **{
        f'adapter-{name}': lambda j=j: build_adapter(dict(joining=j))
        for name, j in JOININGS.items()
    },
    **{
        f'vit-windows-{name}': lambda p=p: build_vit(
            attention_position=p, window_size=[2, None, (2, 3), None]
        )
        for name, p in ATTENTION_POSITIONS.items()
    },
    'adapter-gabor-attention': lambda: build_adapter(
        dict(attention_position=ATTENTION_POSITIONS['gabor'])
    ),
    'vit-windows': lambda: build_vit(window_size=[2, None, (2, 3), None]),
    'vit-dtn': lambda: build_vit(norm_cfg=DTN, out_type='raw', with_dist_token=True),
    'vit-dtn-windows': lambda: build_vit(
        norm_cfg=dict(DTN, layers=3), joining=JOININGS['lape'], window_size=[2, None, (2, 3), None]
    ),
    'vit-prefix-later': lambda: build_vit(
        prefix_after=1,
        out_type='raw',
        joining=JOININGS['unshared'],
        attention_position=dict(type='mmlape.RelativePositionBias'),
    ),
    'vit-raw': lambda: build_vit(out_type='raw', with_dist_token=True),
    'vit-without-prefix': lambda: build_vit(with_cls_token=False, layer_scale=0.1),
    'vit-two-outputs': lambda: build_vit(out_indices=[0, 2]),
    'adapter-per-stage': lambda: build_adapter(vit_feature='per_stage'),
    'adapter-windows': lambda: build_adapter(dict(window_size=[2, None, 2, None])),
    'adapter-with-prefix': lambda: build_adapter(dict(with_cls_token=True, final_norm=True)),
    'adapter-dtn': lambda: build_adapter(dict(norm_cfg=DTN)),
    'adapter-dtn-with-prefix': lambda: build_adapter(
        dict(norm_cfg=DTN, with_cls_token=True, final_norm=True, joining=JOININGS['lape'])
    ),
    'adapter-patch-14': lambda: build_adapter(dict(patch_size=14)),
    'adapter-one-interaction': lambda: build_adapter(interaction_indexes=[[0, 3]]),
    'adapter-coarse-outputs': lambda: build_adapter(out_indices=[1, 3]),
    'adapter-last-output': lambda: build_adapter(out_indices=-1),
    'adapter-deform-ratio': lambda: build_adapter(deform_ratio=0.5),
    **{f'pvt-{name}': lambda j=j: build_pvt(joining=j) for name, j in PYRAMID_JOININGS.items()},
    'pvt-cls-token': lambda: build_pvt(with_cls_token=True, joining=dict(type='mmlape.LaPE')),
    'pvt-two-outputs': lambda: build_pvt(out_indices=[0, 2]),
    'pvt-dtn': lambda: build_pvt(
        norm_cfg=dict(type='mmlape.DTN'), num_heads=[4, 4, 5, 8], joining=dict(type='mmlape.LaPE')
    ),
    'swin': build_swin,
    'swin-lape': lambda: build_swin(
        position=dict(type='mmlape.LearnedPosition'),
        joining=dict(type='mmlape.LaPE'),
        attention_position=dict(type='mmlape.RelativePositionBias', layer_norm=True),
    ),
    'swin-lape-by-stage': lambda: build_swin(
        position=[dict(type='mmlape.LearnedPosition')] * 4,
        joining=dict(type='mmlape.LaPE'),
        attention_position=False,
    ),
    'swin-shared': lambda: build_swin(
        position=dict(type='mmlape.SinusoidalPosition', axes=2),
        joining=dict(type='mmlape.SharedJoining'),
        out_indices=[1, 2],
    ),
    'swin-dtn': lambda: build_swin(norm_cfg=DTN, window_size=(2, 3), shift_alone=True),
    't2t-lape': lambda: build_t2t(joining=dict(type='mmlape.LaPE')),
    't2t-transformer': lambda: build_t2t(
        tokens=dict(type='mmlape.TransformerTokens'), out_indices=[0, 2]
    ),
    't2t-dtn': lambda: build_t2t(norm_cfg=dict(DTN, layers=-1), out_type='raw'),
    'adapter-t2t': lambda: build_adapter(
        dict(
            type='mmlape.T2TViT',
            arch=dict(ARCH, tokens=dict(type='mmlape.TransformerTokens')),
            token_dims=8,
        )
    ),
    'compact-vit-lite': lambda: build_compact(
        with_cls_token=True, out_type='cls_token', joining=JOININGS['lape']
    ),
    'compact-cct-lape': lambda: build_compact(
        stem=dict(type='mmlape.ConvPoolStem', num_convs=2, hidden_dims=8),
        joining=JOININGS['lape'],
        out_type=dict(type='mmlape.SequencePooling'),
    ),
    'compact-dtn': lambda: build_compact(
        norm_cfg=DTN, with_cls_token=True, out_type='raw', out_indices=[1, 3]
    ),
    'ceit-raw': lambda: build_ceit(out_type='raw'),
    'ceit-lape': lambda: build_ceit(joining=JOININGS['lape'], out_indices=[1, 3]),
    'ceit-dtn': lambda: build_ceit(norm_cfg=DTN, with_cls_token=False, with_dist_token=True),
    'sequence-dtn': lambda: build_sequence(norm_cfg=DTN),
    'sequence-bigbird': lambda: build_sequence(
        attention=dict(type='mmlape.BigBirdAttention', block_size=5, num_random=1),
        joining=JOININGS['lape'],
    ),
    'sequence-lsh': lambda: build_sequence(
        attention=dict(type='mmlape.LSHAttention', chunk_size=6, num_buckets=4, num_rounds=2)
    ),
    'levit': build_levit,
    'levit-dtn': lambda: build_levit(norm_cfg=dict(DTN, num_heads=4), out_indices=[0, 2]),
    'levit-lape': lambda: build_levit(
        position=dict(type='mmlape.LearnedPosition'),
        joining=JOININGS['lape'],
        attention_position=dict(type='mmlape.RelativePositionBias', mirrored=True, layer_norm=True),
    ),
    'pvtv2': lambda: build_pvt('V2'),
    'pvtv2-dtn': lambda: build_pvt('V2', norm_cfg=dict(type='mmlape.DTN', num_heads=4)),
    'pvtv2-linear': lambda: build_pvt('V2', linear=True),
    'pvtv2-lape': lambda: build_pvt(
        'V2', position=dict(type='mmlape.LearnedPosition'), joining=dict(type='mmlape.LaPE')
    ),
}
