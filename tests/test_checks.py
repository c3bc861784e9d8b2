"""Every option of every registered class is checked where it enters: of parts by the builder, of others when built."""

import inspect
import typing
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from mmengine.registry import HOOKS as ROOT_HOOKS
from registered import BACKBONES, classes, needed

import mmlape.research.pretraining.dino  # noqa: F401  registers its classes
from mmlape.backbones import StagedTransformer, VisionTransformer
from mmlape.backbones.builder import part_class
from mmlape.checks import (
    check_grid,
    check_layers,
    check_number,
    check_options,
    check_outputs,
    check_positive_int,
    check_rate,
    check_type,
    options_of,
)
from mmlape.registry import MODELS
from mmlape.research.pretraining.classifier import PyramidClassifier, ViTClassifier

ARCH = dict(embed_dims=16, depth=2, num_heads=4, mlp_ratio=2)
# Any text will do.
TEXT = {
    ('Pretrained', 'checkpoint'),
    ('Pretrained', 'key'),
    ('Pretrained', 'prefix'),
    ('SynsetFolder', 'folder'),
    ('CachedFeaturesHook', 'folder'),
    ('ReportHook', 'out_dir'),
    ('PictureHook', 'out_dir'),
    ('PanopticQuality', 'ann_file'),
    ('PanopticQuality', 'seg_prefix'),
    ('PyramidClassifier', 'device'),
    ('ViTClassifier', 'device'),
}
BAD = {'nan': float('nan'), 'text': 'no', 'object': object(), 'none': None}


# What the builder checks, before it builds them.
PARTS = ('mmlape.position.', 'mmlape.norm.', 'mmlape.layers.')


def build(cls, arguments):
    """As a network does with its parts, else as everybody does."""
    if cls.__module__.startswith(PARTS):
        cls = part_class('part', dict(arguments, type=cls))
    return cls(**arguments)


def cases(cls):
    """Every option with values of other types than its own."""
    for option, hint in options_of(cls).items():
        optional = hint is None or type(None) in typing.get_args(hint)
        for kind, value in BAD.items():
            fine = (kind == 'none' and optional) or (
                kind == 'text' and (cls.__name__, option) in TEXT
            )
            if hint is not Any and option != 'own' and not fine:
                yield option, value


# Classifiers are registered by others.
ALL = classes() | {each.__name__: each for each in (ViTClassifier, PyramidClassifier)}
# But for those whose constructor is upstream's.
OURS = {
    name: cls
    for name, cls in sorted(ALL.items())
    if str(getattr(cls.__init__, '__module__', None)).startswith('mmlape.')
}


def test_all_classes_are_covered():
    assert OURS.keys() >= BACKBONES.keys() | {'CheckDataHook', 'DTNRatioHook', 'Pretrained'}
    assert sum(len(list(cases(cls))) for cls in OURS.values()) >= 2400


@pytest.mark.parametrize('name', OURS)
def test_right_options_are_taken_and_wrong_ones_refused(name):
    cls, wrong = OURS[name], []
    if not inspect.isabstract(cls):
        build(cls, needed(cls))
    for option, value in cases(cls):
        message = 'taken'
        try:
            build(cls, {**needed(cls), option: value})
        except (TypeError, ValueError) as error:
            message = str(error)
        if 'got' not in message or option.rpartition('_')[2] not in message:
            wrong.append((option, value, message))
    assert not wrong


def test_nearest_names():
    lape = dict(type='mmlape.LaPE', embed_dims=16, depth=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epss'; did you mean 'eps'"):
        part_class('joining', dict(lape, epss=1))
    with pytest.raises(TypeError, match="'epss'"):
        MODELS.build(dict(lape, epss=1))
    for name in ('Lape', 'LaPe', 'lape', 'LaPEE'):
        with pytest.raises(ValueError, match=r"did you mean 'mmlape\.LaPE'"):
            MODELS.build(dict(lape, type=f'mmlape.{name}'))
    with pytest.raises(KeyError, match=r"did you mean 'mmlape\.DTNRatioHook'"):
        ROOT_HOOKS.build(dict(type='mmlape.DtnRatioHook'))
    with pytest.raises(ValueError, match='not registered as a model of mmlape; there are'):
        MODELS.get('mmlape.Zzzzzzzz')


def test_other_peoples_classes_are_left_alone():
    """Annotations of theirs need not be meant so, and what they pass on is theirs to know."""

    class Loose(MODELS.get('LN')):
        def __init__(self, num_features: str, eps: str = '', **options):
            super().__init__(num_features, 1e-6)

    check_options(Loose, dict(num_features=8, eps=1e-6, anything=1))
    assert options_of(Loose) == dict(num_features=Any, eps=Any)


def test_options_of_a_network_are_named():
    """By its signature and by a TypedDict: completion, mypy and grep find them."""
    options = options_of(VisionTransformer)
    assert options['qkv_bias'] is bool and options['drop_rate'] is float
    assert {'arch', 'img_size', 'norm_cfg', 'joining', 'attention_position'} <= options.keys()
    for cls in {each for each in classes().values() if issubclass(each, StagedTransformer)}:
        kinds = {p.kind for p in list(inspect.signature(cls.__init__).parameters.values())[3:]}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


@pytest.mark.parametrize('kind', [np.float32, np.float64, np.int64, np.uint8, np.float16])
def test_numbers_of_numpy(kind):
    assert type(check_number('rate', kind(1), above=0)) is float
    assert check_rate('rate', kind(0)) == 0
    check_type('rate', kind(1), float)
    check_type('rates', [kind(1)], list[float])
    if kind in (np.int64, np.uint8):
        assert type(check_positive_int('count', kind(2))) is int
        assert check_grid('grid', kind(2)) == (2, 2)
        assert check_layers('layers', kind(1), 3) == (0,)
    else:
        with pytest.raises(TypeError, match='count must be an integer'):
            check_positive_int('count', kind(2))
    for wrong in (np.bool_(True), True):
        with pytest.raises(TypeError, match='must be a number, got'):
            check_number('rate', wrong)
    with pytest.raises(ValueError, match='rate must be finite, got nan'):
        check_type('rate', np.float32('nan'), float)


def test_ranges_are_lists():
    assert check_layers('layers', range(1, 3), 4) == (1, 2)
    assert check_outputs(range(2), 4, 'layers') == (0, 1)
    check_type('layers', range(2), Sequence[int])
    joined = VisionTransformer(ARCH, 32, joining=dict(type='mmlape.LaPE', layers=range(1)))
    assert joined.position.joining.layers == (0,)
    for text in ('01', b'01'):
        with pytest.raises(TypeError, match='must be a list of integers, got'):
            check_type('layers', text, Sequence[int])


@pytest.mark.parametrize('value', [0, 'raw', True, None])
def test_literals_are_of_one_type(value):
    hint = dict | Literal[False, 'raws', 1] | None
    if value is None:
        return check_type('position', value, hint)
    with pytest.raises(TypeError, match='position must be'):
        check_type('position', value, hint)
