"""The experiments on real images by name: the steps that led to each recipe, and what docs/evidence.md asks."""

from __future__ import annotations

from typing import Any

from .recipes import DEFAULT, LAPE, Experiment, Recipe, Variant


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


def _cropped(side: int, crop: int) -> list[dict[str, Any]]:
    """Training on crops of enlarged images; microscopes have no up and down."""
    return [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
        dict(type='RandomResize', scale=(side, side), ratio_range=(0.75, 1.25), keep_ratio=True),
        dict(type='RandomCrop', crop_size=(crop, crop), allow_negative_crop=False),
        dict(
            type='RandomFlip',
            prob=[0.25, 0.25, 0.25],
            direction=['horizontal', 'vertical', 'diagonal'],
        ),
        dict(type='PhotoMetricDistortion'),
        dict(type='PackDetInputs'),
    ]


# The demo's detector samples few anchors and regions of an image, which has few digits.
_MORE_SAMPLES = {
    'model.train_cfg.rpn.sampler.num': 256,
    'model.train_cfg.rcnn.sampler.num': 128,
}
STEPS = {
    'camvid': _steps(
        'micro-segmenter',
        fit=(dict(epochs=12, batch=4), {}),
        average=(dict(ema=True), {}),
        augmented=(dict(augment='strong'), {}),
        longer=(dict(epochs=20), {}),
        larger=(dict(epochs=10, size=320), {}),
    ),
    'nuclei': _steps(
        'micro-adapter',
        fit=(dict(epochs=5, batch=4), {}),
        average=(dict(ema=True), {}),
        crops=(dict(epochs=9, size=512), {'train_dataloader.dataset.pipeline': _cropped(512, 256)}),
        anchors=({}, {'model.rpn_head.anchor_generator.scales': [4]}),
        samples=({}, _MORE_SAMPLES),
    ),
    'bccd': _steps(
        'micro-adapter',
        fit=(dict(epochs=14, batch=4), {}),
        average=(dict(ema=True), {}),
        augmented=(dict(augment='strong'), {}),
        samples=({}, _MORE_SAMPLES),
        larger=(dict(epochs=8, size=480), {}),
    ),
    'cifar10': _steps(
        'cifar/cct-7-3x1_1xb128_cifar10',
        cvt=(
            dict(epochs=10, batch=64, lr=1e-3),
            {
                'net.arch': dict(embed_dims=128, depth=4, num_heads=4, mlp_ratio=1, img_size=32),
                'net.attn_drop_rate': 0.0,
                'net.drop_path_rate': 0.0,
                'model.head.in_channels': 128,
            },
        ),
        convolutions=(
            dict(epochs=8),
            {'net.stem': dict(type='mmlape.ConvPoolStem', num_convs=2, hidden_dims=64)},
        ),
    ),
}
# The steps that the comparisons use.
FROZEN = {'camvid': 'longer', 'nuclei': 'samples', 'bccd': 'samples', 'cifar10': 'cvt'}
RECIPES = {data: STEPS[data][step] for data, step in FROZEN.items()}

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
    name: {**DEFAULT, 'net.norm_cfg': dict(type=f'mmlape.{kind}')}
    for name, kind in {
        'LN': 'LN', 'DTN': 'DTN', 'IN': 'TokenIN', 'BN': 'TokenBN', 'RMS': 'TokenRMS', 'DyT': 'DyT',
        'Derf': 'Derf',
    }.items()
}  # fmt: skip


def _compare(
    data: str, question: str, variants: dict[str, dict[str, Any]], baseline: str, **options: Any
) -> Experiment:
    made = {name: Variant(changes) for name, changes in variants.items()}
    return Experiment(data, f'{data}: {question}', RECIPES[data], made, baseline, **options)


def _primary(data: str) -> Experiment:
    question = 'does LaPE give better results than default joining?'
    pair = {name: POSITIONS[name] for name in ('default', 'LaPE')}
    return _compare(
        data, question, pair, 'default', comparisons=4, views=('0.5x', '2x', 'corrupted')
    )


EXPERIMENTS: dict[str, Experiment] = {
    **{f'{data}-recipe': _recipe_of(data, steps) for data, steps in STEPS.items()},
    **{data: _primary(data) for data in STEPS},
    **{
        f'{data}-position': _compare(data, 'which position?', POSITIONS, 'default', seeds=3)
        for data in ('camvid', 'cifar10')
    },
    'cifar10-norm': _compare('cifar10', 'which norm?', NORMS, 'LN', seeds=3),
}
