"""Test data of a config: its own, corrupted on the fly or read from published folders; and a config for a classifier of
timm."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config, ConfigDict

from mmlape.checks import did_you_mean, type_name

from . import GROUPS

_GEOMETRY = ('ResizeEdge', 'Resize', 'CenterCrop')


class Data(NamedTuple):
    """A data loader's and an evaluator's config."""

    dataloader: ConfigDict
    evaluator: Any


def clean(cfg: Config) -> Data:
    """The config's test data as they are."""
    loader = copy.deepcopy(cfg.test_dataloader)
    if loader.get('persistent_workers'):
        loader['persistent_workers'] = False  # there will be another loader soon
    return Data(loader, copy.deepcopy(cfg.test_evaluator))


def corrupted(cfg: Config, **options: Any) -> Data:
    """The config's test data with ``mmlape.CorruptImage(**options)`` where the benchmarks have it.

    For classifiers that is before packing, on the resized and cropped image, as ImageNet-C was made; for others after
    loading, on the image as it is in the file (Michaelis et al. 2019).

    Raises:
        ValueError: A pipeline without such a place.
    """
    data = clean(cfg)
    step = ConfigDict(type='mmlape.CorruptImage', **options)
    for pipeline in _pipelines(data.dataloader.dataset):
        pipeline.insert(_place(pipeline, cfg.get('default_scope')), step)
    return data


def published(cfg: Config, folder: Path, corruption: str, severity: int) -> Data:
    """One severity of the published ImageNet-C, ``FOLDER/CORRUPTION/SEVERITY`` or ``FOLDER/GROUP/CORRUPTION/SEVERITY``.

    Its images have been cropped to 224 pixels, so nothing is cropped again: they are resized to what the model's test
    pipeline crops to, which for 224 changes nothing.

    Raises:
        ValueError: The config is for no classifier, or there is no such folder.
    """
    group = next((name for name, members in GROUPS.items() if corruption in members), 'extra')
    places = [folder / corruption / str(severity), folder / group / corruption / str(severity)]
    place = next((path for path in places if path.is_dir()), None)
    if place is None:
        raise ValueError(f'--imagenet-c: there is neither {places[0]} nor {places[1]}')
    data = _from_folder(cfg, place, '--imagenet-c')
    data.dataloader.dataset.pipeline = _without_crop(data.dataloader.dataset.pipeline)
    return data


def renditions(cfg: Config, folder: Path) -> Data:
    """ImageNet-R, scored among its 200 classes.

    Raises:
        ValueError: The config is for no classifier.
    """
    data = _from_folder(cfg, folder, '--imagenet-r')
    return data._replace(evaluator=ConfigDict(type='mmlape.SubsetAccuracy'))


def _from_folder(cfg: Config, folder: Path, option: str) -> Data:
    if cfg.get('default_scope') != 'mmpretrain':
        raise ValueError(
            f'{option} is for classifiers (default_scope mmpretrain), and the config has '
            f'default_scope={cfg.get("default_scope")!r}'
        )
    data = clean(cfg)
    (pipeline,) = _pipelines(data.dataloader.dataset)
    data.dataloader['dataset'] = ConfigDict(
        type='mmlape.SynsetFolder', folder=str(folder), pipeline=pipeline, test_mode=True
    )
    return data


def _without_crop(pipeline: list) -> list:
    places = [i for i, step in enumerate(pipeline) if type_name(step) in _GEOMETRY]
    if not places:
        return pipeline
    last = pipeline[places[-1]]
    side = last.get('crop_size') or last.get('scale')
    scale = (side, side) if isinstance(side, int) else tuple(side)
    kept = [step for i, step in enumerate(pipeline) if i not in places]
    kept.insert(places[0], ConfigDict(type='Resize', scale=scale, interpolation='bicubic'))
    return kept


def _pipelines(dataset: Any) -> Iterator[list]:
    """Yield the pipelines of a data set and of those that it wraps or joins."""
    inner = [*dataset.get('datasets', ()), *([dataset.dataset] if 'dataset' in dataset else ())]
    for each in inner:
        yield from _pipelines(each)
    if 'pipeline' in dataset:
        yield dataset.pipeline
    elif not inner:
        raise ValueError(
            f'test_dataloader.dataset ({dataset.get("type")}) has no pipeline to corrupt images in'
        )


def _place(pipeline: list, scope: str | None) -> int:
    """Where in a pipeline images are corrupted: before packing, or after loading."""
    names = [type_name(step) for step in pipeline]
    wanted, after = ('Pack', 0) if scope == 'mmpretrain' else ('LoadImage', 1)
    for place, name in enumerate(names):
        if name.startswith(wanted):
            return place + after
    raise ValueError(f'the test pipeline has no step {wanted}..., got {names}')


def timm_config(name: str) -> Config:
    """A config that tests a timm model on ImageNet's validation images in ``data/imagenet``, by MMPretrain's
    ``TimmClassifier``, which takes timm's checkpoints as they are.

    Args:
        name: Of timm's, or of mmlape's models registered there (``'lape_deit_tiny_patch16_224'``).

    Raises:
        ValueError: There is no such model, timm does not say how it is tested, or it is tested with borders.
        ModuleNotFoundError: MMPretrain is not installed.
    """
    import mmpretrain  # noqa: F401  is there, or this says so
    import timm

    import mmlape.research.pretraining
    import mmlape.timm_models  # noqa: F401  (registers our classifiers)

    if not timm.is_model(name):
        raise ValueError(f'timm has no model {name!r}{did_you_mean(name, timm.list_models())}')
    settings = timm.get_pretrained_cfg(name)
    if settings is None:
        raise ValueError(
            f'timm does not say how {name!r} is tested: give a config with TimmClassifier'
        )
    resize, side = _resizing(name, settings)
    pipeline = [
        dict(type='LoadImageFromFile'),
        resize,
        dict(type='CenterCrop', crop_size=side),
        dict(type='PackInputs'),
    ]
    mean, std = ([255 * value for value in each] for each in (settings.mean, settings.std))
    return Config(
        dict(
            default_scope='mmpretrain',
            model=dict(
                type='TimmClassifier',
                model_name=name,
                data_preprocessor=dict(num_classes=1000, mean=mean, std=std, to_rgb=True),
            ),
            test_dataloader=dict(
                batch_size=128,
                num_workers=8,
                sampler=dict(type='DefaultSampler', shuffle=False),
                dataset=dict(
                    type='ImageNet', data_root='data/imagenet', split='val', pipeline=pipeline
                ),
            ),
            test_evaluator=dict(type='Accuracy', topk=(1, 5)),
            test_cfg=dict(),
        )
    )


def _resizing(name: str, settings: Any) -> tuple[dict[str, Any], int]:
    """The step that resizes an image as timm's own validation does, and the side to which it is cropped then."""
    # Many convolutional networks are tested at a larger size than they are trained at.
    side = (settings.test_input_size or settings.input_size)[-1]
    edge = int(side / (settings.test_crop_pct or settings.crop_pct))  # timm rounds down, too
    ways: dict[str, dict[str, Any]] = {
        'center': dict(type='ResizeEdge', scale=edge, edge='short'),
        'squash': dict(type='Resize', scale=(edge, edge)),
    }
    if settings.crop_mode not in ways:
        raise ValueError(
            f'timm tests {name!r} on images with crop_mode={settings.crop_mode!r}, expected one of '
            f'{", ".join(ways)}: give a config with TimmClassifier'
        )
    interpolation = settings.interpolation or 'bicubic'
    return {**ways[settings.crop_mode], 'backend': 'pillow', 'interpolation': interpolation}, side
