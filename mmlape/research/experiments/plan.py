"""The experiments on real images by name: the steps that led to each recipe, and what docs/evidence.md asks."""

from __future__ import annotations

from typing import Any

from .recipes import DEFAULT, LAPE, PRETRAINING, Experiment, Recipe, Variant, cropped, whole
from .tuning import TUNING


def _steps(model: str, **steps: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Recipe]:
    """Recipes by name, each with the options and changes of those before it."""
    options: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    found = {}
    for name, (more, others) in steps.items():
        options, changes = options | more, changes | others
        found[name] = Recipe(model, options, changes)
    return found


def _recipe_of(data: str, steps: dict[str, Recipe]) -> Experiment:
    first = next(iter(steps.values()))
    question = f'{data}: what does each step of the recipe give? (default joining)'
    variants = {name: Variant(DEFAULT, recipe) for name, recipe in steps.items()}
    return Experiment(data, question, first, variants, seeds=1)


# The demo's detector samples few anchors and regions of an image, which has few digits.
_MORE_SAMPLES = {
    'model.train_cfg.rpn.sampler.num': 256,
    'model.train_cfg.rcnn.sampler.num': 128,
}
# The mask transformer's attention over all cells of stride 4 took two thirds of a step.
_FPN_HEAD = dict(
    type='FPNHead', in_channels=[96] * 4, in_index=[0, 1, 2, 3], feature_strides=[4, 8, 16, 32], channels=64,
    num_classes=11, norm_cfg=dict(type='BN'), dropout_ratio=0.0,
    loss_decode=dict(type='CrossEntropyLoss'),
)  # fmt: skip
STEPS = {
    'camvid': _steps(
        'micro-segmenter',
        fit=(dict(epochs=12, batch=4), {}),
        average=(dict(ema=True), {}),
        fpn=(dict(epochs=24), {'model.decode_head': _FPN_HEAD}),
        short=(dict(epochs=16), {}),
    ),
    'nuclei': _steps(
        'micro-adapter',
        fit=(dict(epochs=5, batch=4), {}),
        average=(dict(ema=True), {}),
        crops=(dict(epochs=9, size=512), {'train_dataloader.dataset.pipeline': cropped(512, 256)}),
        anchors=({}, {'model.rpn_head.anchor_generator.scales': [4]}),
        samples=({}, _MORE_SAMPLES),
        short=(dict(epochs=5), {}),
    ),
    'bccd': _steps(
        'micro-adapter',
        fit=(dict(epochs=14, batch=4), {}),
        average=(dict(ema=True), {}),
        augmented=(dict(augment='strong'), {}),
        samples=({}, _MORE_SAMPLES),
        short=(dict(epochs=10), {}),
        larger=(dict(epochs=30, size=480), {}),
        light=(dict(augment='light'), {}),
    ),
    'cifar10': _steps(
        'cifar/cct-7-3x1_1xb128_cifar10',
        small=(
            dict(epochs=5, batch=64, lr=1e-3),
            {
                'net.arch': dict(embed_dims=96, depth=4, num_heads=3, mlp_ratio=1, img_size=32),
                'net.attn_drop_rate': 0.0,
                'net.drop_path_rate': 0.0,
                'model.head.in_channels': 96,
            },
        ),
        wide=(
            dict(epochs=8),
            {
                'net.arch': dict(embed_dims=128, depth=4, num_heads=4, mlp_ratio=1, img_size=32),
                'model.head.in_channels': 128,
            },
        ),
        convolutions=(
            {},
            {'net.stem': dict(type='mmlape.ConvPoolStem', num_convs=2, hidden_dims=64)},
        ),
        long=(dict(epochs=50), {}),
    ),
}
# The steps that the comparisons use.
FROZEN = {'camvid': 'short', 'nuclei': 'short', 'bccd': 'short', 'cifar10': 'small'}
RECIPES = {data: STEPS[data][step] for data, step in FROZEN.items()}

# After `samples`, for the images of nuclei that the data set has few of.
_INVERTED = dict(type='Invert', prob=0.3)
# Any hue; a quarter of the grey images get a colour.
_RECOLOURED = dict(type='YOLOXHSVRandomAug', hue_delta=90, saturation_delta=120, value_delta=30)
_KINDS = _steps(
    'micro-adapter',
    samples=(dict(STEPS['nuclei']['samples'].options), dict(STEPS['nuclei']['samples'].changes)),
    inverted=({}, {'train_dataloader.dataset.pipeline': cropped(512, 256, _INVERTED)}),
    recoloured=(
        {},
        {'train_dataloader.dataset.pipeline': cropped(512, 256, _INVERTED, _RECOLOURED)},
    ),
    rare=(dict(rare_kinds=4), {}),
)
_DARK = dict(type='mmlape.DarkBackground')
# After `samples` too, and instead of those above.
_KINDS |= _steps(
    'micro-adapter',
    dark=(
        dict(_KINDS['samples'].options),
        {
            **_KINDS['samples'].changes,
            'train_dataloader.dataset.pipeline': cropped(512, 256, _DARK),
            'test_dataloader.dataset.pipeline': whole(512, _DARK),
        },
    ),
    dark_longer=(dict(epochs=24), {}),
    dark_rare=(dict(rare_kinds=4), {}),
)

# The ViT of the networks of CamVid and nuclei as a classifier of CIFAR-10's images at its own size.
_MICRO_CLASSIFIER = Recipe(
    'cifar/vit-lite-7-4_1xb128_cifar10',
    dict(epochs=10, batch=64, lr=1e-3, side=96),
    {
        'model.backbone': dict(
            type='mmlape.VisionTransformer', img_size=96, patch_size=16, with_cls_token=False, layer_scale=True,
            arch=dict(embed_dims=96, depth=4, num_heads=3, mlp_ratio=4), out_type='avg',
        ),
        'model.head.in_channels': 96,
    },
)  # fmt: skip

_NO_POSITION = {**DEFAULT, 'net.position': dict(type='mmlape.NoPosition')}
POSITIONS = {
    'default': DEFAULT,
    'LaPE': LAPE,
    'shared': {'net.joining': dict(type='mmlape.SharedJoining')},
    'unshared': {'net.joining': dict(type='mmlape.UnsharedJoining')},
    'LaPE from default': {'net.joining': dict(type='mmlape.LaPEWarmStart')},
    'Gabor': {**DEFAULT, 'net.position': dict(type='mmlape.GaborPosition')},
    'none': _NO_POSITION,
    'relative bias': {
        **_NO_POSITION,
        'net.attention_position': dict(type='mmlape.RelativePositionBias'),
    },
    'rotary': {**_NO_POSITION, 'net.attention_position': dict(type='mmlape.RotaryPosition')},
}
NORMS = {
    'LN': DEFAULT,
    **{
        name: {**DEFAULT, 'net.norm_cfg': dict(type=f'mmlape.{kind}')}
        for name, kind in {
            'DTN': 'DTN', 'IN': 'TokenIN', 'BN': 'TokenBN', 'RMS': 'TokenRMS', 'DyT': 'DyT', 'Derf': 'Derf',
        }.items()
    },
}  # fmt: skip
_MUON = {
    'optim_wrapper': dict(
        type='OptimWrapper',
        constructor='mmlape.LayerDecayOptimizerConstructor',
        optimizer=dict(type='timm.optim.Muon', lr=1e-3, weight_decay=0.06, betas=(0.9, 0.999)),
        paramwise_cfg=dict(
            decay_rate=1.0,
            custom_keys={
                name: dict(use_muon=True)
                for name in (
                    'attn.qkv.weight',
                    'attn.proj.weight',
                    'mlp.fc1.weight',
                    'mlp.fc2.weight',
                )
            },
        ),
    )
}


def _compare(
    data: str,
    question: str,
    variants: dict[str, dict[str, Any]],
    baseline: str,
    recipe: Recipe | None = None,
    **options: Any,
) -> Experiment:
    made = {name: Variant(changes) for name, changes in variants.items()}
    recipe = recipe or RECIPES[data]
    return Experiment(data, f'{data}: {question}', recipe, made, baseline, **options)


_PAIR = {name: POSITIONS[name] for name in ('default', 'LaPE')}


def _primary(data: str, seeds: int = 5, step: str = '') -> Experiment:
    recipe = STEPS[data][step] if step else None
    which = f', with the recipe {step}' if step else ''
    question = f'does LaPE give better results than default joining{which}?'
    options: dict[str, Any] = dict(comparisons=4, views=('0.5x', '2x', 'corrupted'))
    return _compare(data, question, _PAIR, 'default', recipe, seeds=seeds, **options)


def _with_part_of_cifar10(percent: int) -> Experiment:
    """Make the experiment with part of the images and as many steps."""
    whole = RECIPES['cifar10']
    epochs = round(whole.options['epochs'] * 100 / percent)
    options = {**whole.options, 'epochs': epochs, 'share': percent / 100}
    recipe = Recipe(whole.model, options, whole.changes)
    question = f'LaPE against default joining with {percent} % of the training images'
    return _compare('cifar10', question, _PAIR, 'default', recipe, seeds=3, comparisons=2)


def _transferred(data: str) -> Experiment:
    """Start from the classifiers of CIFAR-10, each seed from those of its own."""
    joinings = {**_PAIR, 'LaPE from default': POSITIONS['LaPE from default']}
    variants = {
        name: Variant(changes, weights='LaPE' if name == 'LaPE' else 'default')
        for name, changes in joinings.items()
    }
    question = (
        f'{data}: from weights of CIFAR-10, does LaPE give better results than default joining?'
    )
    return Experiment(data, question, RECIPES[data], variants, 'default', comparisons=4)


_MUON_RECIPE = Recipe(
    RECIPES['cifar10'].model,
    RECIPES['cifar10'].options,
    {**RECIPES['cifar10'].changes, **_MUON},
)
EXPERIMENTS: dict[str, Experiment] = {
    **{f'{data}-recipe': _recipe_of(data, steps) for data, steps in STEPS.items()},
    'nuclei-kinds': Experiment(
        'nuclei',
        'nuclei: what helps on inverted and on coloured images? (default joining)',
        _KINDS['samples'],
        {name: Variant(DEFAULT, recipe) for name, recipe in _KINDS.items()},
        seeds=1,
        views=('dark', 'coloured', 'inverted'),
    ),
    **{data: _primary(data) for data in STEPS},
    'camvid': _primary('camvid', seeds=20),
    'bccd-light': _primary('bccd', step='light'),
    'cifar10-position': _compare('cifar10', 'which position?', POSITIONS, 'default', seeds=3),
    'cifar10-norm': _compare('cifar10', 'which norm?', NORMS, 'LN', seeds=3, views=('corrupted',)),
    'cifar10-muon': _compare(
        'cifar10',
        'which norm, with Muon for the linear layers?',
        {name: NORMS[name] for name in ('LN', 'DTN', 'DyT', 'Derf')},
        'LN',
        _MUON_RECIPE,
        seeds=3,
    ),
    'camvid-norm': _compare(
        'camvid',
        'DTN or LayerNorm?',
        {name: NORMS[name] for name in ('LN', 'DTN')},
        'LN',
        seeds=3,
        views=('corrupted',),
    ),
    **{f'cifar10-{percent}percent': _with_part_of_cifar10(percent) for percent in (10, 30)},
    PRETRAINING: _compare(
        'cifar10',
        'LaPE against default joining in the ViT that is transferred',
        _PAIR,
        'default',
        _MICRO_CLASSIFIER,
        comparisons=1,
    ),
    **{f'{data}-transfer': _transferred(data) for data in ('camvid', 'nuclei')},
    **TUNING,
}
