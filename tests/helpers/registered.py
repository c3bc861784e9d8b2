"""Every registered class: what it needs to be built, and a micro backbone that contains it if a network can."""

import importlib
import inspect
from functools import partial
from pathlib import Path

import torch
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
from mmengine.dataset import BaseDataset
from torch import nn

from mmlape import registry
from mmlape.backbones.spec import UNSET
from mmlape.layers import AttentionLayer, Stem
from mmlape.layers.block import Block
from mmlape.norm import TokenNorm
from mmlape.position import AttentionPosition, Joining, PositionEmbedding
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


# The option of a micro ViT that puts a component of each kind into it.
KINDS = {
    PositionEmbedding: 'position',
    Joining: 'joining',
    AttentionPosition: 'attention_position',
    TokenNorm: 'norm_cfg',
    Stem: 'stem',
    AttentionLayer: 'attention',
    Block: 'block',
}
# These have no base class of their own.
FILES = {'mmlape.layers.mlp': 'mlp', 'mmlape.layers.pooling': 'out_type'}

# name of a component that the micro ViT takes by one option: its own options, where tests need other than the defaults
OPTIONS = {
    'FactorizedPosition': dict(square=True),
    'LearnedPosition': dict(prefix_rows=False),
    'SinusoidalPosition': dict(axes=2),
    'RelativePositionMlp': dict(hidden_dims=8),
    'LN': dict(eps=1e-5),
    'DTN': dict(layers=1),
    'PowerNorm': dict(warmup_iters=1),
    'SwitchableNorm': dict(use_bn=True),
    'TokenGN': dict(num_groups='heads'),
    'PatchEmbed': dict(norm_cfg=component('LN')),
    'BigBirdAttention': dict(block_size=4, num_random=1),
    'WideValueAttention': dict(key_dims=6),
    'LocallyEnhancedMlp': dict(norm_cfg=component('LN')),
    'NormedMlp': dict(norm_cfg=component('ScaleNorm')),
    'Mlp': dict(drop_rate=0.3),
    'AttentionPooling': dict(num_heads=4, with_prefix=True),
}

# name of a component that needs another network, or further options of the ViT: how to build that network
NETWORKS = {
    'MergedPosition': swin(position=component('LearnedPosition'), joining=component('LaPE')),
    'GaborPosition': pvt(position=component('GaborPosition')),
    'DefaultJoining': vit(with_dist_token=True, out_type='raw'),
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
    'SharedRelativePositionMlp': vit(
        attention_position=component('SharedRelativePositionMlp'), prefix_after=1
    ),
    'SharedRelativePositionBias': vit(
        attention_position=component('SharedRelativePositionBias'),
        num_registers=1,
        window_size=[3, None],
    ),
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
    'LSHAttention': sequence(
        attention=component('LSHAttention', chunk_size=8, num_buckets=32, num_rounds=2)
    ),
    'TokenEmbed': sequence(norm_cfg=component('DTN')),
    'ImageToTokens': ceit(joining=component('LaPE')),
    'LayerClassAttention': ceit(out_type='raw', with_dist_token=True, prefix_after=1),
    'AttentionSubsampling': levit(out_indices=1),
    'ConvStem': levit(joining=component('LaPE'), position=component('SinusoidalPosition')),
    'PostNormBlock': vit(block=component('PostNormBlock'), joining=component('LaPE')),
    'PatchMerging': swin(norm_cfg=component('DTN')),
    'ShiftedWindowAttention': swin(attention_position=component('GaborAttention')),
    'SpatialReductionAttention': pvt(
        'V2', attention=component('SpatialReductionAttention', linear=True)
    ),
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

_ARCH = _LAYERS['arch']
# What a class cannot do without, by the name of the argument.
NEEDED = dict(
    embed_dims=16, num_features=16, num_heads=4, in_channels=4, depth=2, grid=(4, 4), hidden_dims=32, source='deit',
    attn=nn.Identity(), mlp=nn.Identity(), vit=dict(arch=_ARCH, img_size=32), arch=_ARCH, version=1,
    optim_wrapper_cfg=dict(optimizer=dict(type='SGD', lr=0.1)),
)  # fmt: skip
# What some need beside, or must have smaller than by default, to be built alone.
NEEDED_BESIDE = {
    'DINO': dict(
        backbone=dict(
            type='mmlape.VisionTransformer', arch=_ARCH, img_size=32, out_type='cls_token'
        ),
        head=dict(type='mmlape.DINOHead', in_channels=16, out_channels=8, hidden_channels=8),
    ),
    'DINOLoss': dict(num_channels=8),
    'LN2d': dict(num_channels=8),
    'LastMapAttention': dict(num_heads=2),
    'KNNHook': dict(dataloader={}),
    'ListOps': dict(lazy_init=True),
    'LoadImage': dict(channels=5),
    'SeededViews': dict(dataset=BaseDataset(lazy_init=True), lazy_init=True),
    'CachedFeaturesHook': dict(folder='features'),
    'HungarianAssigner': dict(match_costs=[dict(type='mmdet.ClassificationCost')]),
    'RsqrtLR': dict(optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1)),
    'TwoStagePolyLR': dict(
        optimizer=torch.optim.SGD([dict(params=[torch.zeros(1)], in_layer=True)], lr=0.1), end=3000
    ),
    'EoMT': dict(num_classes=3, num_blocks=1),
    'EoMTHead': dict(num_things_classes=3),
    'EoMTSegHead': dict(num_classes=3),
    'LightViTAdapter': dict(conv_inplanes=4),
    'ViTAdapter': dict(interaction_indexes=[[0, 0], [1, 1]], conv_inplanes=4, deform_num_heads=2),
    'PyramidVisionTransformer': dict(arch=_PYRAMID),
    'PyramidVisionTransformerV2': dict(arch=_PYRAMID),
    'PyramidClassifier': dict(arch=_PYRAMID),
    'SwinTransformer': dict(arch=dict(embed_dims=4, depths=[1] * 4, num_heads=[1] * 4)),
    'VisionTransformer': dict(arch=_ARCH),
    'CompactTransformer': dict(arch=_ARCH),
    'SequenceTransformer': dict(arch=_ARCH),
    'LayerClassAttention': dict(num_layers=2),
    'Pretrained': dict(checkpoint='weights.pth'),
    'CorruptImage': dict(corruption='fog', severity=1),
    'SynsetFolder': dict(folder='val', lazy_init=True),
    'PanopticQuality': dict(
        ann_file=str(Path(__file__).parents[1] / 'data/panoptic.json'), seg_prefix=''
    ),
    'LayerDecayOptimizerConstructor': dict(paramwise_cfg=dict(decay_rate=0.9)),
}


def classes():
    """All of ours by name, of all registries; those of `mmlape.research.pretraining.dino` if it is imported."""
    found = {}
    for made in vars(registry).values():
        if not isinstance(made, registry.ChildRegistry):
            continue
        for module in made.by_name.values():
            importlib.import_module(module)
        found |= {
            each.__name__: each
            for each in made.module_dict.values()
            if isinstance(each, type) and each.__module__.startswith('mmlape.')
        }
    return found


def registered(packages=PACKAGES):
    """Components of these packages by name."""
    return {
        name: made
        for name, made in MODELS.module_dict.items()
        if f'{made.__module__}.'.startswith(tuple(f'{package}.' for package in packages))
    }


def needed(cls, **options):
    """Arguments with which a class can be built alone."""
    parameters = inspect.signature(cls.__init__).parameters
    found = {
        name: NEEDED[name]
        for name, p in parameters.items()
        if p.default in (p.empty, UNSET) and name in NEEDED
    }
    return {**found, **NEEDED_BESIDE.get(cls.__name__, {}), **options}


def in_a_network(name, made):
    """How to build a backbone that contains the component."""
    if name in NETWORKS:
        return NETWORKS[name]
    kinds = [option for kind, option in KINDS.items() if issubclass(made, kind)]
    option = next(iter(kinds), FILES.get(made.__module__))
    if option is None:
        raise LookupError(f'{name} is of no kind that a ViT takes by an option: add it to NETWORKS')
    return vit(**{option: component(name, **OPTIONS.get(name, {}))})


# name of a component: how to build a backbone that contains it; `build(with_cp=True)` takes options of all backbones.
BACKBONES = {name: in_a_network(name, made) for name, made in sorted(registered().items())}
