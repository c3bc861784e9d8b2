"""Small backbones of every kind."""

from functools import partial

from torch import nn

from mmlape.registry import MODELS


def component(name, **options):
    """Its config."""
    return dict(options, type=f'mmlape.{name}')


ARCH = dict(embed_dims=24, depth=4, num_heads=3, mlp_ratio=2)
ADAPTER = component(
    'ViTAdapter',
    vit=component(
        'VisionTransformer', arch=ARCH, img_size=64, with_cls_token=False, final_norm=False, layer_scale=True
    ),
    conv_inplanes=8,
    interaction_indexes=[[0, 0], [1, 1], [2, 2], [3, 3]],
)  # fmt: skip
JOININGS = {
    'default': component('DefaultJoining'),
    'lape': component('LaPE'),
    'lape-sharing': component('LaPE', progressive=False),
    'lape-warm-affine': component('LaPEWarmStart'),
    'lape-warm-gate': component('LaPEWarmStart', construction='gate'),
    'shared': component('SharedJoining'),
    'unshared': component('UnsharedJoining'),
    'lape-eta-2': component('LaPE', layers=2),
}
DTN = component('DTN')
# Position inside the attention.
ATTENTION_POSITIONS = {
    'relative': component('RelativePositionBias', layers=[0, 2]),
    'quadratic': component('QuadraticBias', position_init='local'),
    'gabor': component('GaborAttention', layers=3),
    'gabor-2,3,4': component('GaborAttention', parts='2,3,4', layers=2),
}


def _build(name, **options):
    return MODELS.build(component(name, **options))


def build_adapter(vit=None, **options):
    """A micro ViT-Adapter; ``vit`` holds options of the ViT inside."""
    config = dict(ADAPTER, **options)
    config['vit'] = dict(ADAPTER['vit'], **(vit or {}))
    return MODELS.build(config)


def build_eomt(vit=None, **options):
    """A micro EoMT; ``vit`` holds options of the ViT inside."""
    inside = component('VisionTransformer', **{'arch': ARCH, 'img_size': 64, **(vit or {})})
    sizes = dict(num_classes=3, num_queries=5, num_blocks=2)
    return _build('EoMT', vit=inside, **{**sizes, **options})


def build_light_adapter(vit=None, **options):
    """As :func:`build_adapter`, without interactions."""
    inside = dict(ADAPTER['vit'], **(vit or {}))
    return MODELS.build(component('LightViTAdapter', vit=inside, conv_inplanes=4, **options))


# Micro networks, which take further options.
build_vit = partial(_build, 'VisionTransformer', arch=ARCH, img_size=64)
CEIT_STEM = component('ImageToTokens', hidden_channels=8)
build_ceit = partial(_build, 'CeiT', arch=ARCH, img_size=64, stem=CEIT_STEM)
LEVIT_ARCH = dict(embed_dims=[16, 24, 32], depths=[1, 2, 1], num_heads=[2, 5, 3], key_dims=4)
build_levit = partial(_build, 'LeViT', arch=LEVIT_ARCH, img_size=64)
SWIN_ARCH = dict(
    embed_dims=8, depths=[1, 2, 2, 1], num_heads=[1, 2, 4, 4], mlp_ratio=2, window_size=3
)
build_swin = partial(_build, 'SwinTransformer', arch=SWIN_ARCH, img_size=64)
T2T_ARCH = dict(embed_dims=16, depth=3, num_heads=2, mlp_ratio=2)
build_t2t = partial(_build, 'T2TViT', arch=T2T_ARCH, img_size=64, token_dims=8)
# Of patches and without a class token.
build_compact = partial(_build, 'CompactTransformer', arch=dict(ARCH, img_size=32))
PYRAMID_ARCH = dict(
    embed_dims=[8, 16, 20, 32], depths=[1, 2, 1, 1], num_heads=[1, 2, 5, 8], mlp_ratios=[2, 2, 2, 2],
    sr_ratios=[8, 4, 2, 1],
)  # fmt: skip
# Its stages have one or two layers.
PYRAMID_JOININGS = {name: joining for name, joining in JOININGS.items() if 'eta' not in name}


def build_pvt(version='', **options):
    """A micro PVT; ``version='V2'`` for PVTv2."""
    sizes = dict(arch=PYRAMID_ARCH, img_size=64)
    return _build(f'PyramidVisionTransformer{version}', **{**sizes, **options})


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


def randomise(model, std=0.2):
    """Initial values hide errors: norms are equal, biases zero."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model.eval()


def count_parameters(*modules):
    """Number of values in all of them."""
    return sum(p.numel() for module in modules for p in module.parameters())


LAPE, LEARNED = JOININGS['lape'], component('LearnedPosition')
WINDOWS = [2, None, (2, 3), None]
# name: how to build it. Every variant goes through the same tests.
VARIANTS = {
    **{f'vit-{name}': partial(build_vit, joining=j) for name, j in JOININGS.items()},
    **{f'adapter-{name}': partial(build_adapter, dict(joining=j)) for name, j in JOININGS.items()},
    **{
        f'vit-windows-{name}': partial(build_vit, attention_position=p, window_size=WINDOWS)
        for name, p in ATTENTION_POSITIONS.items()
    },
    'adapter-gabor-attention': partial(build_adapter, dict(attention_position=ATTENTION_POSITIONS['gabor'])),
    'vit-windows': partial(build_vit, window_size=WINDOWS),
    'vit-dtn': partial(build_vit, norm_cfg=DTN, out_type='raw', with_dist_token=True),
    'vit-dtn-windows': partial(build_vit, norm_cfg=dict(DTN, layers=3), joining=LAPE, window_size=WINDOWS),
    'vit-prefix-later': partial(
        build_vit, prefix_after=1, out_type='raw', joining=JOININGS['unshared'],
        attention_position=component('RelativePositionBias'),
    ),
    'vit-raw': partial(build_vit, out_type='raw', with_dist_token=True),
    'vit-without-prefix': partial(build_vit, with_cls_token=False, layer_scale=0.1),
    'vit-two-outputs': partial(build_vit, out_indices=[0, 2]),
    'adapter-per-stage': partial(build_adapter, vit_feature='per_stage'),
    'adapter-windows': partial(build_adapter, dict(window_size=[2, None, 2, None])),
    'adapter-with-prefix': partial(build_adapter, dict(with_cls_token=True, final_norm=True)),
    'adapter-dtn': partial(build_adapter, dict(norm_cfg=DTN)),
    'adapter-dtn-with-prefix': partial(
        build_adapter, dict(norm_cfg=DTN, with_cls_token=True, final_norm=True, joining=LAPE)
    ),
    'adapter-patch-14': partial(build_adapter, dict(patch_size=14)),
    'adapter-one-interaction': partial(build_adapter, interaction_indexes=[[0, 3]]),
    'adapter-coarse-outputs': partial(build_adapter, out_indices=[1, 3]),
    'adapter-last-output': partial(build_adapter, out_indices=-1),
    'light-adapter': partial(build_light_adapter, dict(patch_size=14), vit_layers=[0, 2, 3]),
    'adapter-deform-ratio': partial(build_adapter, deform_ratio=0.5),
    **{f'pvt-{name}': partial(build_pvt, joining=j) for name, j in PYRAMID_JOININGS.items()},
    'pvt-cls-token': partial(build_pvt, with_cls_token=True, joining=LAPE),
    'pvt-two-outputs': partial(build_pvt, out_indices=[0, 2]),
    'pvt-dtn': partial(build_pvt, norm_cfg=DTN, num_heads=[4, 4, 5, 8], joining=LAPE),
    'swin': build_swin,
    'swin-lape': partial(
        build_swin, position=LEARNED, joining=LAPE,
        attention_position=component('RelativePositionBias', layer_norm=True),
    ),
    'swin-lape-by-stage': partial(build_swin, position=[LEARNED] * 4, joining=LAPE, attention_position=False),
    'swin-shared': partial(
        build_swin, position=component('SinusoidalPosition', axes=2), joining=component('SharedJoining'),
        out_indices=[1, 2],
    ),
    'swin-dtn': partial(build_swin, norm_cfg=DTN, window_size=(2, 3), shift_alone=True),
    't2t-lape': partial(build_t2t, joining=LAPE),
    't2t-transformer': partial(build_t2t, tokens=component('TransformerTokens'), out_indices=[0, 2]),
    't2t-dtn': partial(build_t2t, norm_cfg=dict(DTN, layers=-1), out_type='raw'),
    'adapter-t2t': partial(
        build_adapter, component('T2TViT', arch=dict(ARCH, tokens=component('TransformerTokens')), token_dims=8)
    ),
    'compact-vit-lite': partial(build_compact, with_cls_token=True, out_type='cls_token', joining=LAPE),
    'compact-cct-lape': partial(
        build_compact, stem=component('ConvPoolStem', num_convs=2, hidden_dims=8), joining=LAPE,
        out_type=component('SequencePooling'),
    ),
    'compact-dtn': partial(build_compact, norm_cfg=DTN, with_cls_token=True, out_type='raw', out_indices=[1, 3]),
    'ceit-raw': partial(build_ceit, out_type='raw'),
    'ceit-lape': partial(build_ceit, joining=LAPE, out_indices=[1, 3]),
    'ceit-dtn': partial(build_ceit, norm_cfg=DTN, with_cls_token=False, with_dist_token=True),
    'sequence-dtn': partial(build_sequence, norm_cfg=DTN),
    'sequence-bigbird': partial(
        build_sequence, attention=component('BigBirdAttention', block_size=5, num_random=1), joining=LAPE
    ),
    'sequence-lsh': partial(
        build_sequence, attention=component('LSHAttention', chunk_size=6, num_buckets=4, num_rounds=2)
    ),
    'levit': build_levit,
    'levit-dtn': partial(build_levit, norm_cfg=dict(DTN, num_heads=4), out_indices=[0, 2]),
    'levit-lape': partial(
        build_levit, position=LEARNED, joining=LAPE,
        attention_position=component('RelativePositionBias', mirrored=True, layer_norm=True),
    ),
    'pvtv2': partial(build_pvt, 'V2'),
    'pvtv2-dtn': partial(build_pvt, 'V2', norm_cfg=dict(DTN, num_heads=4)),
    'pvtv2-linear': partial(build_pvt, 'V2', linear=True),
    'pvtv2-lape': partial(build_pvt, 'V2', position=LEARNED, joining=LAPE),
}  # fmt: skip
