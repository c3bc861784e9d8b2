"""A micro backbone for every registered component, shared by the tests of all of them."""

from functools import partial

from backbone_variants import (
    build_adapter,
    build_ceit,
    build_compact,
    build_eomt,
    build_levit,
    build_light_adapter,
    build_pvt,
    build_sequence,
    build_swin,
    build_t2t,
    build_vit,
    component,
)

from mmlape.registry import MODELS

# What networks are made of. Models around them (mmlape.research.pretraining) are elsewhere.
PACKAGES = ('mmlape.position', 'mmlape.norm', 'mmlape.layers', 'mmlape.backbones')
_DROP = dict(drop_rate=0.1, drop_path_rate=0.2)
_LAYERS = dict(_DROP, arch=dict(embed_dims=16, depth=2, num_heads=4, mlp_ratio=2))
_VIT = dict(_LAYERS, img_size=32, patch_size=8)
_PYRAMID = dict(
    embed_dims=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    num_heads=[1, 2, 2, 4],
    mlp_ratios=[2, 2, 2, 2],
    sr_ratios=[8, 4, 2, 1],
)
_LEVIT = dict(embed_dims=[8, 8, 16], depths=[1, 1, 1], num_heads=[1, 3, 2], key_dims=4)
_SWIN = dict(embed_dims=4, depths=[1, 2, 1, 1], num_heads=[1, 1, 1, 2], mlp_ratio=1, window_size=3)


def _small(build, **defaults):
    """A function of options, which returns a function that builds the network with them and takes more."""
    return lambda **options: partial(build, **{**defaults, **options})


vit = _small(build_vit, **_VIT)
ceit = _small(build_ceit, **_VIT, stem=component('ImageToTokens', hidden_channels=4))
levit = _small(build_levit, **_DROP, arch=_LEVIT, img_size=32)
swin = _small(build_swin, **_DROP, arch=_SWIN, img_size=32)
t2t = _small(build_t2t, **_DROP, arch=dict(embed_dims=8, depth=2, num_heads=2), img_size=32)
compact = _small(build_compact, **_LAYERS, img_size=32, stem=component('PatchEmbed', patch_size=8))
sequence = _small(build_sequence, **_LAYERS)


def pvt(version='', **options):
    """As the others; four stages with a layer each."""
    return partial(build_pvt, version, **{**_DROP, 'arch': _PYRAMID, 'img_size': 32, **options})


def adapter(**options):
    """As the others; options are those of the ViT inside."""
    inside = dict(_VIT, patch_size=16, final_norm=False, with_cls_token=False, **options)
    sizes = dict(conv_inplanes=4, deform_num_heads=2, num_points=2)
    return partial(build_adapter, inside, interaction_indexes=[[0, 0], [1, 1]], **sizes)


def eomt(**options):
    """As the others, with masked attention in its last layer."""
    return partial(build_eomt, dict(_VIT, **options), num_blocks=1)


def _norm(name, **options):
    return vit(norm_cfg=component(name, **options))


# name of a component: how to build a backbone that contains it; `build(with_cp=True)` takes options of all backbones.
BACKBONES = {
    'LearnedPosition': vit(position=component('LearnedPosition', prefix_rows=False)),
    'FactorizedPosition': vit(position=component('FactorizedPosition', square=True)),
    'MergedPosition': swin(position=component('LearnedPosition'), joining=component('LaPE')),
    'NoPosition': vit(position=component('NoPosition')),
    'SinusoidalPosition': vit(position=component('SinusoidalPosition', axes=2)),
    'GaborPosition': pvt(position=component('GaborPosition')),
    'DefaultJoining': vit(with_dist_token=True, out_type='raw'),
    'SharedJoining': vit(joining=component('SharedJoining')),
    'UnsharedJoining': vit(joining=component('UnsharedJoining'), with_dist_token=True),
    'LaPE': pvt(joining=component('LaPE'), with_cls_token=True),
    'LaPEWarmStart': vit(joining=component('LaPEWarmStart', construction='gate')),
    'RelativePositionBias': pvt(attention_position=component('RelativePositionBias')),
    'QuadraticBias': pvt(attention_position=component('QuadraticBias')),
    'GaborAttention': vit(
        attention_position=component('GaborAttention', parts='2,3,4'), window_size=[(2, 3), None]
    ),
    'RotaryPosition': vit(attention_position=component('RotaryPosition'), num_registers=2),
    'MixedRotaryPosition': vit(
        attention_position=component('MixedRotaryPosition'), window_size=[3, None]
    ),
    'RelativePositionMlp': vit(attention_position=component('RelativePositionMlp', hidden_dims=8)),
    'SharedRelativePositionMlp': vit(
        attention_position=component('SharedRelativePositionMlp'), prefix_after=1
    ),
    'SharedRelativePositionBias': vit(
        attention_position=component('SharedRelativePositionBias'),
        num_registers=1,
        window_size=[3, None],
    ),
    'LN': _norm('LN', eps=1e-5),
    'TokenRMS': _norm('TokenRMS'),
    'DTN': _norm('DTN', layers=1),
    'DyT': _norm('DyT'),
    'Derf': _norm('Derf'),
    'PowerNorm': _norm('PowerNorm', warmup_iters=1),
    'ScaleNorm': _norm('ScaleNorm'),
    'SwitchableNorm': _norm('SwitchableNorm', use_bn=True),
    'TokenBN': _norm('TokenBN'),
    'TokenGN': _norm('TokenGN', num_groups='heads'),
    'TokenIN': _norm('TokenIN'),
    'PatchEmbed': vit(stem=component('PatchEmbed', norm_cfg=component('LN'))),
    'TokensToToken': t2t(tokens=component('PerformerTokens'), token_dims=4),
    'PerformerTokens': t2t(tokens=component('PerformerTokens', drop_rate=0.0), num_registers=1),
    'TransformerTokens': t2t(tokens=component('TransformerTokens')),
    'ConvPoolStem': compact(stem=component('ConvPoolStem', num_convs=2, hidden_dims=4)),
    'Attention': vit(window_size=3),
    'DifferentialAttention': vit(
        attention=component('DifferentialAttention', inner_norm=component('LN')),
        attention_position=component('RelativePositionBias'),
        window_size=[3, None],
    ),
    'BigBirdAttention': vit(attention=component('BigBirdAttention', block_size=4, num_random=1)),
    'LSHAttention': sequence(
        attention=component('LSHAttention', chunk_size=8, num_buckets=32, num_rounds=2)
    ),
    'TokenEmbed': sequence(norm_cfg=component('DTN')),
    'ImageToTokens': ceit(joining=component('LaPE')),
    'LocallyEnhancedMlp': vit(mlp=component('LocallyEnhancedMlp', norm_cfg=component('LN'))),
    'LayerClassAttention': ceit(out_type='raw', with_dist_token=True, prefix_after=1),
    'AttentionSubsampling': levit(out_indices=1),
    'ConvStem': levit(joining=component('LaPE'), position=component('SinusoidalPosition')),
    'NormedMlp': vit(mlp=component('NormedMlp', norm_cfg=component('ScaleNorm'))),
    'PostNormBlock': vit(block=component('PostNormBlock'), joining=component('LaPE')),
    'WideValueAttention': vit(attention=component('WideValueAttention', key_dims=6)),
    'PatchMerging': swin(norm_cfg=component('DTN')),
    'ShiftedWindowAttention': swin(attention_position=component('GaborAttention')),
    'SpatialReductionAttention': pvt(
        'V2', attention=component('SpatialReductionAttention', linear=True)
    ),
    'Mlp': vit(mlp=component('Mlp', drop_rate=0.3)),
    'SwiGLU': vit(mlp=component('SwiGLU', norm_cfg=component('LN')), pre_norm=True, prefix_after=1),
    'ConvMlp': vit(mlp=component('ConvMlp'), with_cls_token=False),
    'Block': vit(layer_scale=0.5),
    'ParallelBlock': vit(
        block=component('ParallelBlock', layer_scale=0.5),
        attention=component('Attention', qk_norm=component('TokenRMS'), inner_norm=component('LN')),
        window_size=3,
        joining=component('LaPE'),
    ),
    'SeveralBranchesBlock': vit(
        block=component('SeveralBranchesBlock', layer_scale=0.5, num_branches=3),
        joining=component('LaPE'),
        attention_position=component('RelativePositionBias'),
    ),
    'StreamNormBlock': compact(norm_cfg=component('DTN')),
    'AttentionPooling': vit(out_type=component('AttentionPooling', num_heads=4, with_prefix=True)),
    'SequencePooling': vit(out_type=component('SequencePooling')),
    'VisionTransformer': vit(out_type='featmap_and_prefix', out_indices=[0, 1], prefix_after=1),
    'CeiT': ceit(out_type='featmap_and_prefix'),
    'LeViT': levit(out_type='avg', out_indices=2),
    'PyramidVisionTransformer': pvt(with_cls_token=True, out_type='cls_token', out_indices=3),
    'PyramidVisionTransformerV2': pvt('V2', out_type='avg', out_indices=3),
    'T2TViT': t2t(norm_cfg=component('DTN', layers=1), joining=component('LaPE')),
    'SwinTransformer': swin(out_type='avg', out_indices=3, shift_alone=True),
    'CompactTransformer': compact(with_cls_token=True, out_type='cls_token'),
    'SequenceTransformer': sequence(out_type='cls_token'),
    'EoMT': eomt(joining=component('LaPE')),
    'ViTAdapter': adapter(joining=component('LaPE')),
    'LightViTAdapter': partial(
        build_light_adapter,
        dict(_VIT, patch_size=16, joining=component('LaPE')),
        out_indices=[0, 3],
    ),
}


def registered():
    """Components of these packages by name."""
    MODELS.import_from_location()
    return {
        name: made
        for name, made in MODELS.module_dict.items()
        if f'{made.__module__}.'.startswith(tuple(f'{package}.' for package in PACKAGES))
    }
