"""Experiments on real images: data sets, recipes, and the variants that are compared."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmengine.config import Config

    from mmlape.apps.fit import OwnData

    from .small_images import FolderData

Changes = Mapping[str, Any]  # new values of a config by their dotted paths


@dataclass(frozen=True)
class RealData:
    """A data set of real images.

    Attributes:
        task: Of ``mmlape fit``, or ``'classify'``.
        measure: The name of its primary measure.
        network: Where the transformer stands in the config.
        classes: Names of the classes of label maps.
    """

    task: str
    measure: str
    network: str = 'model.backbone.vit'
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How a data set is trained.

    Attributes:
        model: A name of ``mmlape fit --list``; of a classifier, a shipped config.
        options: Those of ``mmlape fit``, but for workers and the seed, and with random weights by default, and
            ``rare_kinds``, how often an epoch shows images that are not dark (default 1); of a classifier, those of
            :func:`classifier_config`.
        changes: What differs from the config that is so made.
    """

    model: str
    options: Mapping[str, Any]
    changes: Changes = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One of the things that an experiment compares: a recipe with changes of its own.

    Attributes:
        changes: What differs from the recipe's config; paths that begin with ``net.`` are those of the transformer.
        recipe: Instead of the experiment's.
        weights: The variant of :data:`PRETRAINING` with whose weights the transformer starts, of the same seed. Default
            None: random weights.
    """

    changes: Changes = field(default_factory=dict)
    recipe: Recipe | None = None
    weights: str | None = None


@dataclass(frozen=True)
class Experiment:
    """Trainings that answer one question.

    Attributes:
        data: A key of :data:`DATA`.
        question: In words.
        recipe: How it is trained.
        variants: What is compared, by names.
        baseline: The variant that all others are compared with; '' where there is no comparison.
        seeds: Runs of each variant.
        comparisons: How many intervals are to hold together. Default None: those of its own variants.
        views: How the images of the validation part are shown again, for measures of their own: ``'corrupted'``,
            ``'0.5x'`` for half the test size, or one of :data:`~mmlape.research.experiments.kinds.KINDS`.
    """

    data: str
    question: str
    recipe: Recipe
    variants: Mapping[str, Variant]
    baseline: str = ''
    seeds: int = 5
    comparisons: int | None = None
    views: tuple[str, ...] = ()


CAMVID = (
    'sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian', 'bicyclist',
)  # fmt: skip
DATA = {
    'nuclei': RealData('instance', 'mask AP'),
    'bccd': RealData('detect', 'box AP'),
    'camvid': RealData('segment', 'mIoU', classes=CAMVID),
    'cifar10': RealData('classify', 'accuracy', network='model.backbone'),
}
PRETRAINING = 'cifar10-pretraining'  # the experiment whose networks others start from
DEFAULT = {'net.joining': dict(type='mmlape.DefaultJoining')}
LAPE = {'net.joining': dict(type='mmlape.LaPE')}


def cropped(side: int, crop: int, *others: dict[str, Any]) -> list[dict[str, Any]]:
    """Training on crops of enlarged images; microscopes have no up and down. ``others``: transforms of whole images."""
    return [
        dict(type='LoadImageFromFile'),
        *others,
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


def whole(side: int, *others: dict[str, Any]) -> list[dict[str, Any]]:
    """The test pipeline of `mmlape fit` for detectors, with transforms ``others`` of whole images."""
    return [
        dict(type='LoadImageFromFile'),
        *others,
        dict(type='Resize', keep_ratio=True, scale=(side, side)),
        dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
        dict(type='PackDetInputs'),
    ]


def run_config(
    experiment: Experiment, variant: str, seed: int, root: Path, folder: Path
) -> tuple[Config, OwnData | FolderData]:
    """The config of a run, without validation, and the data that it names.

    Args:
        root: The folder of the data set.
        folder: Where the run writes.

    Raises:
        ValueError: If the folder does not hold these data.
    """
    # Not above: `mmlape experiment` checks its options by the plan.
    from mmlape.apps.fit import FitOptions, config_text, find_data, find_model
    from mmlape.config_text import read_config_text

    from .small_images import classifier_config, find_images

    data_set, chosen = DATA[experiment.data], experiment.variants[variant]
    recipe = chosen.recipe or experiment.recipe
    data: OwnData | FolderData
    if data_set.task == 'classify':
        data = find_images(root, folder)
        cfg = classifier_config(data, recipe.model, recipe.options, seed, folder)
    else:
        data = find_data(root, folder, data_set.task, classes=data_set.classes)
        given = {k: v for k, v in recipe.options.items() if k != 'rare_kinds'}
        options = FitOptions(**{'weights': 'none', **given}, workers=0, seed=seed)
        text = config_text(data, find_model(recipe.model, data.task), options, folder)
        cfg = read_config_text(text)
    for path, value in {**recipe.changes, **chosen.changes}.items():
        *parents, last = path.replace('net.', f'{data_set.network}.').split('.')
        part = cfg
        for key in parents:
            part = part[key]
        part[last] = copy.deepcopy(value)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.default_hooks.checkpoint.update(interval=1, save_best=None, max_keep_ckpts=1)
    return cfg, data


def rescaled(cfg: Config, factor: float) -> Config:
    """The config with test images resized to ``factor`` times their usual size."""
    cfg = copy.deepcopy(cfg)
    for step in cfg.test_dataloader.dataset.pipeline:
        if step.type == 'Resize':
            step.scale = tuple(round(factor * side) for side in step.scale)
    return cfg
