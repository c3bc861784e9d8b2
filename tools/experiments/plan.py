"""The experiments on real images by name: the steps that led to each recipe, and what docs/evidence.md asks."""

from __future__ import annotations

from typing import Any

from .recipes import DEFAULT, Experiment, Recipe, Variant


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
    ),
    'bccd': _steps(
        'micro-adapter',
        fit=(dict(epochs=14, batch=4), {}),
        average=(dict(ema=True), {}),
        augmented=(dict(augment='strong'), {}),
    ),
}
EXPERIMENTS = {f'{data}-recipe': _recipe_of(data, steps) for data, steps in STEPS.items()}
