"""Lists of what is accepted, and values that papers or the published code state, word for word."""

import argparse

import numpy as np
import pytest
import torch
from registered import component, needed

from mmlape.apps.inference.reading import IMAGES
from mmlape.apps.inference.sources import VIDEOS
from mmlape.checkpoints import reading
from mmlape.checkpoints.formats import FORMATS
from mmlape.registry import MODELS
from mmlape.research.datasets.list_ops import IDS
from mmlape.research.robustness import CORRUPTIONS, EXTRA, SEVERITIES

# A part, the option that is wrong, and all that it accepts there.
ACCEPTED = [
    ('Mlp', 'act', ['gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'silu']),
    ('GaborPosition', 'variant', ['E', 'G', 'G+E']),
    ('GaborAttention', 'parts', ['2,3', '2,3,4', '4']),
    ('GaborAttention', 'query_key', ['E', 'G', 'G+E', 'LE']),
    ('GaborAttention', 'value', ['E', 'G', 'G+E', 'LE']),
    ('QuadraticBias', 'position_init', ['local', 'random']),
    ('RelativePositionBias', 'resize', ['bicubic', 'geometric']),
    ('RotaryPosition', 'coordinates', ['cells', 'centred']),
    ('RotaryPosition', 'pairs', ['halves', 'neighbours']),
    ('SinusoidalPosition', 'axes', [1, 2]),
    ('SinusoidalPosition', 'other_grids', ['extrapolate', 'resize']),
    (
        'LearnedPosition', 'resize',
        ['bicubic', 'bicubic_antialias', 'bicubic_antialias_square', 'bilinear', 'bilinear_antialias',
         'bilinear_corners_square', 'bilinear_square'],
    ),
    (
        'LaPE', 'norm',
        ['channel_gain', 'channel_gain_bias', 'identity', 'norm', 'norm_channel_gain', 'norm_channel_gain_bias',
         'norm_scalar_gain', 'scalar_gain'],
    ),
    ('LaPEWarmStart', 'construction', ['affine', 'gate']),
    ('DTN', 'positions', ['banded', 'learned', 'uniform']),
    ('DTN', 'position_init', ['local', 'random']),
    (
        'VisionTransformer', 'out_type',
        ['avg', 'cls_and_dist', 'cls_token', 'featmap', 'featmap_and_cls', 'featmap_and_prefix', 'pooled', 'raw'],
    ),
    (
        'ViTAdapter', 'vit_feature',
        ['last', 'per_stage'],
    ),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'option', 'accepted'), ACCEPTED)
def test_what_an_option_accepts(name, option, accepted):
    wrong = 3 if option == 'axes' else 'nothing'
    with pytest.raises(ValueError, match=f'{option} must be one of') as raised:
        MODELS.build(component(name, **needed(MODELS.get(f'mmlape.{name}'), **{option: wrong})))
    assert f'must be one of {accepted}, got' in str(raised.value)


def test_what_a_checkpoint_may_hold():
    """Nothing else than tensors, numbers, texts and a training history is built out of a file."""
    before = torch.serialization.get_safe_globals()
    with reading._with_history():
        kinds = [k for k in torch.serialization.get_safe_globals() if k not in before]
    names = {kind[1] if isinstance(kind, tuple) else kind.__qualname__ for kind in kinds}
    numbers = {type(np.dtype(kind)).__qualname__ for kind in '?bBhHiIlLqQefdSU'}
    assert names == numbers | {
        'mmengine.logging.history_buffer.HistoryBuffer', 'builtins.getattr', 'builtins.bytes',
        'ndarray', 'dtype', '_reconstruct', 'scalar', 'Namespace',
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
    assert IMAGES == (
        '.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.npy'
    )  # fmt: skip
    assert VIDEOS == ('.mp4', '.avi', '.mov', '.mkv', '.webm')
    assert IDS == {
        '0': 1, '1': 2, '2': 3, '3': 4, '4': 5, '5': 6, '6': 7, '7': 8, '8': 9, '9': 10,
        '[MIN': 11, '[MAX': 12, '[MED': 13, '[SM': 14, ']': 15,
    }  # fmt: skip


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
