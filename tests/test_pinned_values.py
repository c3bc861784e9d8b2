"""Lists of what is accepted, and values that papers or the published code state, word for word."""

import argparse
import inspect
from importlib import import_module

import numpy as np
import pytest
import torch
from mmengine.registry import Registry
from registered import component, registered

from mmlape import registry
from mmlape.backbones import UNSET
from mmlape.checkpoints.contents import parts_of_history
from mmlape.checkpoints.formats import FORMATS
from mmlape.registry import MODELS
from mmlape.research.datasets.list_ops import IDS
from mmlape.research.robustness import CORRUPTIONS, EXTRA, SEVERITIES

HEADS = dict(embed_dims=8, num_heads=2, grid=(3, 5))
TABLE = dict(embed_dims=8, grid=(3, 5))
MICRO = dict(arch=dict(embed_dims=8, depth=1, num_heads=2, mlp_ratio=1), img_size=32)

# A part, its options, the one that is wrong, and all that it accepts there.
ACCEPTED = [
    ('Mlp', dict(embed_dims=8, hidden_dims=8), 'act', ['gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'silu']),
    ('GaborPosition', TABLE, 'variant', ['E', 'G', 'G+E']),
    ('GaborAttention', HEADS, 'parts', ['2,3', '2,3,4', '4']),
    ('GaborAttention', HEADS, 'query_key', ['E', 'G', 'G+E', 'LE']),
    ('GaborAttention', HEADS, 'value', ['E', 'G', 'G+E', 'LE']),
    ('QuadraticBias', HEADS, 'position_init', ['local', 'random']),
    ('RelativePositionBias', HEADS, 'resize', ['bicubic', 'geometric']),
    ('RotaryPosition', HEADS, 'coordinates', ['cells', 'centred']),
    ('RotaryPosition', HEADS, 'pairs', ['halves', 'neighbours']),
    ('SinusoidalPosition', TABLE, 'axes', [1, 2]),
    ('SinusoidalPosition', TABLE, 'other_grids', ['extrapolate', 'resize']),
    (
        'LearnedPosition', TABLE, 'resize',
        ['bicubic', 'bicubic_antialias', 'bicubic_antialias_square', 'bilinear', 'bilinear_antialias',
         'bilinear_corners_square', 'bilinear_square'],
    ),
    (
        'LaPE', dict(embed_dims=8, depth=2), 'norm',
        ['channel_gain', 'channel_gain_bias', 'identity', 'norm', 'norm_channel_gain', 'norm_channel_gain_bias',
         'norm_scalar_gain', 'scalar_gain'],
    ),
    ('LaPEWarmStart', dict(embed_dims=8, depth=2), 'construction', ['affine', 'gate']),
    ('DTN', dict(num_features=8, num_heads=2), 'positions', ['banded', 'learned', 'uniform']),
    ('DTN', dict(num_features=8, num_heads=2), 'position_init', ['local', 'random']),
    (
        'VisionTransformer', MICRO, 'out_type',
        ['avg', 'cls_and_dist', 'cls_token', 'featmap', 'featmap_and_prefix', 'pooled', 'raw'],
    ),
    (
        'ViTAdapter', dict(vit=dict(MICRO, with_cls_token=False), interaction_indexes=[[0, 0]]), 'vit_feature',
        ['last', 'per_stage'],
    ),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'options', 'option', 'accepted'), ACCEPTED)
def test_what_an_option_accepts(name, options, option, accepted):
    wrong = 3 if option == 'axes' else 'nothing'
    with pytest.raises(ValueError, match=f'{option} must be one of') as raised:
        MODELS.build(component(name, **options, **{option: wrong}))
    assert f'must be one of {accepted}, got' in str(raised.value)


def test_what_a_checkpoint_may_hold():
    """Nothing else than tensors, numbers, texts and a training history is built out of a file."""
    kinds = parts_of_history()
    names = {kind[1] if isinstance(kind, tuple) else kind.__qualname__ for kind in kinds}
    numbers = {type(np.dtype(kind)).__qualname__ for kind in '?bBhHiIlLqQefdSU'}
    assert names == numbers | {
        'mmengine.logging.history_buffer.HistoryBuffer', 'builtins.getattr', 'builtins.bytes',
        'ndarray', 'dtype', '_reconstruct', 'scalar',
    }  # fmt: skip
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


def test_names():
    assert list(FORMATS) == [
        'mmlape', 'timm', 'deit', 'transformers', 'lape', 'pvt', 'dtn', 'swin', 't2t', 'compact', 'ceit', 'levit',
        'vit_adapter', 'eomt', 'eomt_delta', 'mmseg', 'mmpretrain',
    ]  # fmt: skip
    assert CORRUPTIONS == (
        'gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur',
        'snow', 'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression',
    )  # fmt: skip
    assert EXTRA == ('speckle_noise', 'gaussian_blur', 'spatter', 'saturate')
    assert SEVERITIES == (1, 2, 3, 4, 5)
    assert IDS == {
        '0': 1, '1': 2, '2': 3, '3': 4, '4': 5, '5': 6, '6': 7, '7': 8, '8': 9, '9': 10,
        '[MIN': 11, '[MAX': 12, '[MED': 13, '[SM': 14, ']': 15,
    }  # fmt: skip


# Defaults that are not nothing (None, 0, False) of every registered part; those that papers state are in its text.
# fmt: off
DEFAULTS = {
    'Attention': dict(qkv_bias=True, proj_bias=True),
    'AttentionPooling': dict(num_heads=8, mlp_ratio=4.0, act='gelu', eps=1e-06),
    'AttentionSubsampling': dict(embed_dims=192, key_dims=16, value_ratio=4.0, mlp_ratio=2.0),
    'BigBirdAttention': dict(block_size=64, window=3, num_random=3, qkv_bias=True, proj_bias=True),
    'ConvPoolStem': dict(in_channels=3, embed_dims=192, kernel_size=3, stride=1, num_convs=1, hidden_dims=64),
    'ConvStem': dict(in_channels=3, embed_dims=128, num_convs=4),
    'DTN': dict(pool=1, stabilize=True, ratio_mean='learned', ratio_var='learned', positions='learned',
        position_init='local', eps=1e-05),
    'Derf': dict(alpha_init=0.5),
    'DifferentialAttention': dict(qkv_bias=True, proj_bias=True),
    'DyT': dict(alpha_init=0.5),
    'EoMT': dict(num_queries=200, num_blocks=3),
    'FactorizedPosition': dict(num_tables=1, std=0.02),
    'GaborAttention': dict(parts='4', value='E'),
    'GaborPosition': dict(num_tables=1, variant='G+E', with_bias=True),
    'ImageToTokens': dict(in_channels=3, embed_dims=192, patch_size=16, hidden_channels=64),
    'LN': dict(eps=1e-06),
    'LSHAttention': dict(chunk_size=64, num_buckets=32, num_rounds=1, qkv_bias=True, proj_bias=True),
    'LaPE': dict(progressive=True, norm='norm_channel_gain_bias'),
    'LaPEWarmStart': dict(construction='affine'),
    'LayerClassAttention': dict(qkv_bias=True),
    'LightViTAdapter': dict(conv_inplanes=16, out_indices=(0, 1, 2, 3)),
    'LearnedPosition': dict(num_tables=1, resize='bicubic', std=0.02, prefix_rows=True),
    'MergedPosition': dict(num_tables=1),
    'MixedRotaryPosition': dict(temperature=10.0, columns_first=True, pairs='neighbours'),
    'Mlp': dict(act='gelu'),
    'NoPosition': dict(num_tables=1),
    'PatchEmbed': dict(in_channels=3, embed_dims=192, patch_size=16),
    'PatchMerging': dict(embed_dims=192),
    'PerformerTokens': dict(drop_rate=0.1),
    'PowerNorm': dict(num_groups=4, warmup_iters=10000, alpha_forward=0.9, alpha_backward=0.9, eps=1e-05),
    'QuadraticBias': dict(position_init='random'),
    'RelativePositionBias': dict(eps=1e-05, resize='bicubic'),
    'RelativePositionMlp': dict(hidden_dims=128),
    'RotaryPosition': dict(temperature=10000.0, coordinates='cells', pairs='neighbours'),
    'ScaleNorm': dict(eps=1e-05),
    'SeveralBranchesBlock': dict(num_branches=2),
    'SharedRelativePositionBias': dict(eps=1e-05, resize='bicubic'),
    'SharedRelativePositionMlp': dict(hidden_dims=128),
    'ShiftedWindowAttention': dict(qkv_bias=True, window_size=7),
    'SinusoidalPosition': dict(num_tables=1, axes=1, other_grids='extrapolate'),
    'SpatialReductionAttention': dict(sr_ratio=1, qkv_bias=True),
    'SwiGLU': dict(act='silu'),
    'SwitchableNorm': dict(momentum=0.1, eps=1e-05),
    'TokenBN': dict(eps=1e-05, momentum=0.1),
    'TokenEmbed': dict(in_channels=1, embed_dims=512, vocab_size=16),
    'TokenGN': dict(num_groups=4, eps=1e-05),
    'TokenIN': dict(eps=1e-05),
    'TokenRMS': dict(eps=1e-06),
    'TokensToToken': dict(in_channels=3, embed_dims=384, token_dims=64),
    'ViTAdapter': dict(conv_inplanes=64, num_points=4, deform_num_heads=6, cffn_ratio=0.25, deform_ratio=1.0,
        interaction_indexes=((0, 2), (3, 5), (6, 8), (9, 11)),
        num_extra_extractors=2, vit_feature='last', out_indices=(0, 1, 2, 3)),
    'WideValueAttention': dict(key_dims=16, value_ratio=2.0),
}
# fmt: on


def told(made):
    """What a part's signature says that is not nothing."""
    values = {key: p.default for key, p in inspect.signature(made).parameters.items()}
    empty = inspect.Parameter.empty
    return {
        k: v
        for k, v in values.items()
        if v is not empty and v is not None and v is not UNSET and v not in (0, False)
    }


def test_defaults():
    found = {name: told(made) for name, made in registered().items()}
    assert {name: values for name, values in found.items() if values} == DEFAULTS


# Every eps of a network as it is built without options.
EPS = {
    'VisionTransformer': {('LN', 1e-6)},
    'CeiT': {('BatchNorm2d', 1e-5), ('LN', 1e-6), ('TokenBN', 1e-5)},
    'LeViT': {('BatchNorm2d', 1e-5), ('TokenBN', 1e-5)},
    'PyramidVisionTransformer': {('LN', 1e-6), ('LN', 1e-5), ('LayerNorm', 1e-5)},
    'PyramidVisionTransformerV2': {('LN', 1e-6), ('LN', 1e-5), ('LayerNorm', 1e-5)},
    'T2TViT': {('LN', 1e-5), ('PerformerTokens', 1e-8)},
    'SwinTransformer': {('LN', 1e-5)},
    'CompactTransformer': {('LN', 1e-5)},
    'SequenceTransformer': {('LN', 1e-6)},
}


@pytest.mark.parametrize('name', EPS)
def test_eps(name):
    with torch.device('meta'):
        model = MODELS.build(component(name))
    found = {
        (type(m).__name__, m.eps)
        for m in model.modules()
        if isinstance(getattr(m, 'eps', None), float)
    }
    assert found == EPS[name]


# The same of what is not in a network: hooks, heads, necks, schedules, data sets, transforms.
WHERE = (
    'checkpoints',
    'datasets.panoptic',
    'heads.eomt_detection',
    'heads.eomt_segmentation',
    'necks',
    'pretraining.dino',
    'pretraining.distillation',
    'report.hook',
    'robustness',
    'training',
)
OTHER_DEFAULTS = {
    'CheckDataHook': dict(max_decode=1000),
    'CorruptImage': dict(channel_order='bgr'),
    'DINO': dict(momentum=0.996, num_global=2),
    'DINOGradientsHook': dict(max_norm=3.0, freeze_last_layer=1),
    'DINOHead': dict(
        out_channels=65536,
        hidden_channels=2048,
        bottleneck_channels=256,
        num_layers=3,
        norm_last_layer=True,
    ),
    'DINOLoss': dict(student_temperature=0.1, teacher_temperature=0.04, centre_momentum=0.9),
    'DTNRatioHook': dict(interval=50),
    'DigitImages': dict(split='train', photographs=True),
    'DistilledClassifier': dict(teacher_weight=0.5),
    'EoMTHead': dict(class_weight=2.0, mask_weight=5.0, dice_weight=5.0, no_object_weight=0.1),
    'EoMTSegHead': dict(
        ignore_index=255, class_weight=2.0, mask_weight=5.0, dice_weight=5.0, no_object_weight=0.1
    ),
    'FSDPStrategy': dict(reshard_after_forward=True),
    'KNNHook': dict(k=20, temperature=0.07),
    'LN2d': dict(eps=1e-06),
    'LoadPanopticMap': dict(with_bbox=True, with_label=True, with_mask=True, with_seg=True),
    'LastMapAttention': dict(num_heads=32, mlp_ratio=4.0),
    'ListOps': dict(brackets=True, max_length=2000),
    'MaskAnnealingHook': dict(power=0.9),
    'Pretrained': dict(min_matched=0.95),
    'ReportHook': dict(examples=4),
    'RsqrtLR': dict(warmup=1000),
    'SeededViews': dict(views=8),
    'SimpleFeaturePyramid': dict(out_channels=256, scales=(4, 2, 1, 0.5)),
    'StopAtNonFiniteHook': dict(gradients=True),
    'TwoStagePolyLR': dict(warmup=(500, 1000), power=0.9),
}


def test_other_defaults():
    for module in WHERE:
        import_module(f'mmlape.{module}')
    parts = {
        name: made
        for each in vars(registry).values()
        if isinstance(each, Registry)
        for name, made in each.module_dict.items()
        if made.__module__.startswith('mmlape.') and '__init__' in vars(made)
    }
    found = {name: told(made) for name, made in parts.items() if name not in registered()}
    assert {name: values for name, values in found.items() if values} == OTHER_DEFAULTS
