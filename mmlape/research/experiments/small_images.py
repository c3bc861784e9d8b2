"""CIFAR-10 as folders of images: its config, its split, and the accuracy of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import Runner, load_checkpoint

from mmlape.shipped import find_config

from .scores import SEVERITY, samples_of

CLASSES = (
    'airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck',
)  # fmt: skip
HELD_OUT = 500  # training images of each class, for validation
_AUGMENTED = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]


@dataclass(frozen=True)
class FolderPart:
    """A part: its folder with a folder for each class, and the list of its images and labels ('' for all)."""

    images: str
    ann_file: str


@dataclass(frozen=True)
class FolderData:
    """Images in folders by class; see :class:`mmlape.apps.fit.OwnData`."""

    train: FolderPart
    val: FolderPart
    files: Mapping[str, str] = field(default_factory=dict)

    def part(self, name: str) -> FolderPart:
        """``'val'``, or the whole folder of that name beside ``train``."""
        folder = str(Path(self.train.images).with_name(name))
        return self.val if name == 'val' else FolderPart(folder, '')


def find_images(root: Path, folder: Path) -> FolderData:
    """The data in ``root/train/CLASS``, of which the last images of each class by name are for validation.

    Args:
        folder: Where the lists of the two parts are to be written.

    Raises:
        ValueError: If a class is missing, or has too few images.
    """
    lines: dict[str, list[str]] = {'train': [], 'val': []}
    for label, name in enumerate(CLASSES):
        images = sorted(path.name for path in (root / 'train' / name).glob('*.jpg'))
        if len(images) <= HELD_OUT:
            raise ValueError(
                f'{root}/train/{name} has {len(images)} images (*.jpg): more than {HELD_OUT} are needed'
            )
        for part, some in (('train', images[:-HELD_OUT]), ('val', images[-HELD_OUT:])):
            lines[part] += [f'{name}/{image} {label}' for image in some]
    files = {str(folder / f'data/{part}.txt'): '\n'.join(each) for part, each in lines.items()}
    train, val = (FolderPart(str(root / 'train'), path) for path in files)
    return FolderData(train, val, files)


def classifier_config(
    data: FolderData, model: str, options: Mapping[str, Any], seed: int, folder: Path
) -> Config:
    """The config of a classifier.

    Args:
        model: A shipped config of MMPretrain's form.
        options: ``epochs``, ``batch``, ``lr``; ``share``, the part of the training images that is used (drawn by the
            seed; default 1); and ``side``, to which images are enlarged (default 32: they are not).
    """
    side = options.get('side', 32)
    resize = dict(type='Resize', scale=(side, side))
    plain = [_AUGMENTED[0], resize, _AUGMENTED[-1]]
    augmented = [*_AUGMENTED[:-1], *[resize] * (side != 32), _AUGMENTED[-1]]
    cfg = Config.fromfile(find_config(model))
    epochs, lr = options['epochs'], options['lr']
    dataset = dict(type='CustomDataset', classes=CLASSES)
    for name, part, pipeline in (
        ('train', data.train, augmented), ('val', data.val, plain), ('test', data.val, plain)
    ):  # fmt: skip
        loader = cfg[f'{name}_dataloader']
        loader.dataset = dict(
            dataset, data_prefix=part.images, ann_file=part.ann_file, pipeline=pipeline
        )
        loader.update(batch_size=options['batch'], num_workers=0, persistent_workers=False)
    if (share := options.get('share', 1)) < 1:
        images = data.files[data.train.ann_file].count('\n') + 1
        order = np.random.default_rng(seed).permutation(images)
        cfg.train_dataloader.dataset.indices = sorted(order[: round(share * images)].tolist())
    cfg.model.train_cfg = None
    cfg.optim_wrapper.optimizer.lr = lr
    cfg.train_cfg = dict(by_epoch=True, max_epochs=epochs)
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
        dict(type='CosineAnnealingLR', T_max=epochs, eta_min=lr / 100, convert_to_iter_based=True),
    ]
    cfg.custom_hooks = []
    cfg.randomness, cfg.work_dir = dict(seed=seed), str(folder / 'training')
    return cfg


@torch.no_grad()
def accuracy_of(
    checkpoint: Path, cfg: Config, part: FolderPart, corruption: str | None = None
) -> dict[str, Any]:
    """The record's measures of a classifier, as of :func:`experiments.scores.score`.

    Args:
        corruption: One of ImageNet-C, at severity :data:`SEVERITY`. Default None.
    """
    init_default_scope('mmpretrain')
    model = MODELS.build({'data_preprocessor': cfg.data_preprocessor, **cfg.model})
    load_checkpoint(model, str(checkpoint), map_location='cpu', strict=True)
    loader = dict(cfg.test_dataloader)
    dataset = dict(loader['dataset'], data_prefix=part.images, ann_file=part.ann_file)
    if corruption:
        step = dict(type='mmlape.CorruptImage', corruption=corruption, severity=SEVERITY)
        load, *others = dataset['pipeline']
        dataset['pipeline'] = [load, step, *others]
    loader['dataset'] = DATASETS.build(dataset)
    right = [
        bool((sample.pred_label == sample.gt_label).all())
        for batch in Runner.build_dataloader(loader)
        for sample in model.eval().test_step(batch)
    ]
    hits = np.array(right, float)
    sampled = hits[samples_of(len(hits))].mean(1)
    return dict(
        images=len(hits),
        metrics={'accuracy': round(100 * hits.mean(), 3)},
        sampled={'accuracy': np.round(100 * sampled, 3).tolist()},
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
