"""Every option of every registered class is checked when it is built, whoever builds it."""

import inspect
import typing
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from mmengine.registry import HOOKS as ROOT_HOOKS
from registered import BACKBONES
from torch import nn

import mmlape.pretraining.dino  # noqa: F401  registers its classes
from mmlape import registry
from mmlape.backbones import StagedTransformer
from mmlape.pretraining.classifier import PyramidClassifier, ViTClassifier
from mmlape.registry import MODELS
from mmlape.signatures import checked_options, described

ARCH = dict(embed_dims=16, depth=2, num_heads=4, mlp_ratio=2)
PYRAMID = dict(
    embed_dims=[8] * 4, depths=[1] * 4, num_heads=[1] * 4, mlp_ratios=[1] * 4, sr_ratios=[1] * 4
)
# What a class cannot do without, by the name of the argument.
SAMPLES = dict(
    embed_dims=16, num_features=16, num_heads=4, in_channels=4, depth=2, grid=(4, 4), hidden_dims=32, source='deit',
    attn=nn.Identity(), mlp=nn.Identity(), vit=dict(arch=ARCH, img_size=32), arch=ARCH, version=1,
    optim_wrapper_cfg=dict(optimizer=dict(type='SGD', lr=0.1)),
)  # fmt: skip
# What some need beside.
EXTRA = {
    'DINO': dict(
        backbone=dict(
            type='mmlape.VisionTransformer', arch=ARCH, img_size=32, out_type='cls_token'
        ),
        head=dict(type='mmlape.DINOHead', in_channels=16, out_channels=8, hidden_channels=8),
    ),
    'DINOLoss': dict(num_channels=8),
    'LN2d': dict(num_channels=8),
    'KNNHook': dict(dataloader={}),
    'ListOps': dict(lazy_init=True),
    'RsqrtLR': dict(optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1)),
    'ViTAdapter': dict(interaction_indexes=[[0, 0], [1, 1]], conv_inplanes=4, deform_num_heads=2),
    'PyramidVisionTransformer': dict(arch=PYRAMID),
    'PyramidVisionTransformerV2': dict(arch=PYRAMID),
    'PyramidClassifier': dict(arch=PYRAMID),
    'SwinTransformer': dict(arch=dict(embed_dims=4, depths=[1] * 4, num_heads=[1] * 4)),
    'VisionTransformer': dict(arch=ARCH),
    'CompactTransformer': dict(arch=ARCH),
    'SequenceTransformer': dict(arch=ARCH),
    'LayerClassAttention': dict(num_layers=2),
    'Pretrained': dict(checkpoint='weights.pth'),
    'CorruptImage': dict(corruption='fog', severity=1),
    'SynsetFolder': dict(folder='val', lazy_init=True),
    'LayerDecayOptimizerConstructor': dict(paramwise_cfg=dict(decay_rate=0.9)),
}
# Any text will do.
TEXT = {('Pretrained', 'checkpoint'), ('SynsetFolder', 'folder')}
BAD = {'nan': float('nan'), 'text': 'no', 'object': object(), 'none': None}


def classes():
    """All of ours, of all registries, and the classifiers, which others register."""
    found = {}
    for name in registry.__all__:
        made = getattr(registry, name)
        made.import_from_location()
        found |= {
            each.__name__: each
            for each in made.module_dict.values()
            if isinstance(each, type) and each.__module__.startswith('mmlape.')
        }
    return found | {each.__name__: each for each in (ViTClassifier, PyramidClassifier)}


def options_of(cls):
    """Names and annotations of a constructor's options; those of a network that have a short name, too."""
    hints = typing.get_type_hints(cls.__init__)
    hints.pop('return', None)
    names = [
        p.name
        for p in list(inspect.signature(cls.__init__).parameters.values())[1:]
        if p.kind is not p.VAR_KEYWORD and p.kind is not p.VAR_POSITIONAL
    ]
    options = {name: hints[name] for name in names if hints.get(name, typing.Any) is not typing.Any}
    if issubclass(cls, StagedTransformer):
        common = (
            'drop_rate',
            'attn_drop_rate',
            'drop_path_rate',
            'frozen_stages',
            'with_cp',
            'compile_blocks',
            'out_type',
        )
        options |= dict.fromkeys((*common, 'out_indices', 'init_cfg', 'final_norm', *cls.short))
    return options


def arguments_of(cls):
    parameters = inspect.signature(cls.__init__).parameters
    needed = {
        name: SAMPLES[name]
        for name, p in parameters.items()
        if p.default is p.empty and name in SAMPLES
    }
    return {**needed, **EXTRA.get(cls.__name__, {})}


def cases():
    for name, cls in sorted(classes().items()):
        if not getattr(cls.__init__, '_checks_options', False):
            continue  # upstream's constructor, or none
        for option, hint in options_of(cls).items():
            optional = hint is None or type(None) in typing.get_args(hint)
            for kind in BAD:
                if (kind == 'none' and optional) or (kind == 'text' and (name, option) in TEXT):
                    continue
                yield pytest.param(cls, option, kind, id=f'{name}-{option}-{kind}')


CASES = list(cases())


def test_all_classes_are_covered():
    covered = {case.values[0].__name__ for case in CASES}
    assert covered >= BACKBONES.keys() | {'CheckDataHook', 'DTNRatioHook', 'Pretrained'}
    assert len(CASES) >= 600


@pytest.mark.parametrize('cls', dict.fromkeys(c.values[0] for c in CASES), ids=lambda c: c.__name__)
def test_right_options_are_taken(cls):
    """Else the next test would pass for another reason."""
    if not inspect.isabstract(cls):
        cls(**arguments_of(cls))


@pytest.mark.parametrize(('cls', 'option', 'kind'), CASES)
def test_wrong_options_are_refused(cls, option, kind):
    arguments = {**arguments_of(cls), option: BAD[kind]}
    with pytest.raises((TypeError, ValueError)) as refused:
        cls(**arguments)
    message = str(refused.value)
    assert option in message or option.rpartition('_')[2] in message
    assert 'got' in message


@pytest.mark.parametrize(
    ('hint', 'text'),
    [
        (bool | float | None, 'True or False, a number or None'),
        (int | tuple[int, int], 'an integer or a pair of integers'),
        (Sequence[dict] | None, 'a list of dicts or None'),
        (int | float, 'a number'),
        (nn.Module, 'a Module'),
        (dict | Literal[False] | None, 'a dict, False or None'),
    ],
)  # fmt: skip
def test_annotations_in_words(hint, text):
    assert described(hint) == text


def test_nearest_names():
    lape = dict(type='mmlape.LaPE', embed_dims=16, depth=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epss'; did you mean 'eps'"):
        MODELS.build(dict(lape, epss=1))
    for name in ('Lape', 'LaPe', 'lape', 'LaPEE'):
        with pytest.raises(ValueError, match=r"did you mean 'mmlape\.LaPE'"):
            MODELS.build(dict(lape, type=f'mmlape.{name}'))
    with pytest.raises(KeyError, match=r"did you mean 'mmlape\.DTNRatioHook'"):
        ROOT_HOOKS.build(dict(type='mmlape.DtnRatioHook'))
    with pytest.raises(ValueError, match='not registered as a model of mmlape; there are'):
        MODELS.get('mmlape.Zzzzzzzz')


def test_other_peoples_classes_are_left_alone():
    """Annotations of theirs need not be meant so; what they inherit from ours is checked."""

    class Loose(MODELS.get('LN')):
        def __init__(self, num_features: str, eps=1e-6):
            super().__init__(num_features, eps)

    init = Loose.__init__
    assert checked_options(Loose) is Loose
    assert Loose.__init__ is init
    assert Loose(8).weight.shape == (8,)
    with pytest.raises(TypeError, match='eps must be a number'):
        Loose(8, eps='1e-6')
