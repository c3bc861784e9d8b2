"""Train a head on features of a frozen backbone that were computed once, of a fixed number of views of each image."""

from __future__ import annotations

import hashlib
import json
import platform
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from mmengine.dataset import BaseDataset, RepeatDataset, pseudo_collate
from mmengine.dist import all_gather_object, barrier, get_dist_info
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmlape.checkpoints.report import listed
from mmlape.checks import check_options, check_positive_int
from mmlape.registry import DATASETS, HOOKS

from .exact_resume import set_random_state
from .stop_hooks import all_finite, unwrapped

NO_VIEW = 0  # the digest of a view that is not cached yet


@DATASETS.register_module()
class SeededViews(RepeatDataset):
    """``views`` times the images of a data set, whose random transforms depend on seed, image and view alone.

    With :class:`~mmlape.training.CachedFeaturesHook`, samples carry their features.

    Args:
        dataset: The data set or its config, of MMDetection or MMSegmentation.
        views: Of each image. Default 8.
        seed: Default 0.
        lazy_init: As in MMEngine. Default False.

    Raises:
        TypeError, ValueError: If ``views`` or ``seed`` is not an integer, or out of range.
    """

    cache: FeatureCache | None = None

    def __init__(
        self, dataset: BaseDataset | dict, views: int = 8, seed: int = 0, lazy_init: bool = False
    ) -> None:
        options = dict(dataset=dataset, lazy_init=lazy_init)
        check_options(SeededViews, options)
        self.seed = check_positive_int('seed', seed, minimum=0)
        super().__init__(dataset, check_positive_int('views', views), lazy_init)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """View ``idx // images`` of an image, the same whenever it is asked for."""
        image = self._get_ori_dataset_idx(idx)  # loads annotations first, after lazy_init
        view = idx // self._ori_len
        with random_state(self.seed, image, view):
            sample = super().__getitem__(idx)
        if self.cache is not None:
            maps = self.cache.read(idx, sample['inputs'])
            sample['data_samples'].set_field(maps, 'features')
        return sample


class FeatureCache:
    """Feature maps of all views in ``maps_00.npy``, ... of a folder, float16 and memory-mapped, and the digest of each
    view's input in ``inputs.npy``.

    Args:
        folder: Where they are, or will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[np.ndarray]] = {}

    def make(self, views: int, shapes: list[torch.Size]) -> None:
        """Make files for maps of these shapes ``(C, H, W)``."""
        for number, shape in enumerate(shapes):
            path = self.folder / f'maps_{number:02}.npy'
            np.lib.format.open_memmap(path, 'w+', np.float16, (views, *shape)).flush()
        # Written last: it marks the cache as complete.
        np.lib.format.open_memmap(self.folder / 'inputs.npy', 'w+', np.uint64, (views,)).flush()

    def is_made(self) -> bool:
        """Whether :meth:`make` has made the files."""
        return (self.folder / 'inputs.npy').is_file()

    def missing(self) -> list[int]:
        """Views that are not there."""
        return np.flatnonzero(self._opened()[0] == NO_VIEW).tolist()

    def write(self, view: int, digest: int, maps: list[Tensor]) -> None:
        """Write a view's maps ``(C, H, W)``; ValueError if they have other shapes than the first view's."""
        digests, *files = self._opened('r+')
        for file, each in zip(files, maps, strict=True):
            if each.shape != file.shape[1:]:
                raise ValueError(
                    f'cached features need views of one size, got maps {tuple(each.shape)} and {file.shape[1:]}: '
                    'crop all images, or pad them to a fixed size'
                )
            file[view] = each.numpy()
        digests[view] = digest

    def read(self, view: int, inputs: Tensor) -> list[Tensor]:
        """A view's maps; ValueError if they were made of other inputs."""
        digests, *files = self._opened()
        if digests[view] != digest_of(inputs):
            raise ValueError(
                f'{self.folder}: view {view} was made of another image or by other transforms; '
                'remove the folder, and features are computed again'
            )
        return [torch.from_numpy(file[view].copy()) for file in files]

    def __getstate__(self) -> dict[str, Any]:
        return dict(folder=self.folder, _files={})  # a process that loads data opens them itself

    def _opened(self, mode: Literal['r', 'r+'] = 'r') -> list[np.ndarray]:
        if mode not in self._files:
            names = ['inputs.npy', *(path.name for path in sorted(self.folder.glob('maps_*.npy')))]
            self._files[mode] = [np.load(self.folder / name, mmap_mode=mode) for name in names]
        return self._files[mode]


def digest_of(inputs: Tensor) -> int:
    """Return the hash of a view; never 0 (``NO_VIEW``)."""
    data = np.ascontiguousarray(inputs.numpy())
    digest = hashlib.blake2b(data.tobytes() + str(data.shape).encode(), digest_size=8).digest()
    return max(int.from_bytes(digest, 'little'), NO_VIEW + 1)


@contextmanager
def random_state(*key: int) -> Iterator[None]:
    """Within, random numbers depend on the key alone; after it, they go on as before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    set_random_state(*key, devices=False)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@HOOKS.register_module()
class CachedFeaturesHook(Hook):
    """Compute the features of a frozen backbone for every view of the training data once, and train on them.

    Before the first step, all views of a ``mmlape.SeededViews`` run through data preprocessor and backbone, which
    frees the steps from the backbone; several processes share the work. Features are float16 in memory-mapped files of
    ``folder/KEY``, where the key stands for the weights and the configs of backbone, preprocessor and data set, so that
    another weight or transform makes new ones. Each view is compared with the digest of what its features were made of:
    a changed image is an error. A computation that was killed goes on where it was. Validation runs the backbone as
    always, and checkpoints are those of an ordinary training. In a config::

        train_dataloader = dict(
            dataset=dict(_delete_=True, type='mmlape.SeededViews', views=8, dataset=_base_.train_dataloader.dataset))
        custom_hooks = [dict(type='mmlape.CachedFeaturesHook', folder='features')]

    All views must come out of the preprocessor with one size, by a crop or by padding to a fixed size.

    Args:
        folder: Where features go: ``views * images * 2`` bytes for each value of the maps, which is said before.

    Raises:
        TypeError: If ``folder`` is not a string.
        ValueError: If the training data are not ``mmlape.SeededViews``, processes are on several machines, a part of
            the backbone is trained or in training mode, views have several sizes, a feature is NaN or too large for
            float16, or the disk is too small.
    """

    def __init__(self, folder: str) -> None:
        check_options(CachedFeaturesHook, dict(folder=folder))
        self.folder = Path(folder)
        self._undo: list[Any] = []

    def before_train(self, runner: Runner) -> None:
        """Compute what is missing, and let the backbone return cached features."""
        model = unwrapped(runner.model)
        dataset = runner.train_dataloader.dataset
        if not isinstance(dataset, SeededViews):
            raise ValueError(
                "CachedFeaturesHook needs train_dataloader.dataset of type='mmlape.SeededViews', "
                f'got {type(dataset).__name__}'
            )
        model.train()
        _check_frozen(model.backbone)
        _check_padding(model.data_preprocessor)
        machines = {*all_gather_object(platform.node())}
        if len(machines) > 1:  # whose pages of one file would overwrite each other
            raise ValueError(f'cached features need processes of one machine, got {len(machines)}')
        cache = FeatureCache(self.folder / _key(runner, model, dataset))
        _compute(runner, model, dataset, cache)
        dataset.cache = cache
        loop: Any = runner.train_loop
        iterator: Any = getattr(loop, 'dataloader_iterator', None)
        if type(iterator).__module__ == 'mmengine.runner.loops':
            # Workers of MMEngine 0.10's, which starts them when it is built, have the data set without the cache.
            loop.dataloader_iterator = type(iterator)(loop.dataloader)
        replay = _Replay(model.backbone.forward)
        model.backbone.forward = replay.forward
        handle = model.register_forward_pre_hook(replay.before, with_kwargs=True)
        self._undo = [handle.remove, lambda: vars(model.backbone).pop('forward')]

    def after_train(self, runner: Runner) -> None:
        """Let the backbone compute again."""
        while self._undo:
            self._undo.pop()()


class _Replay:
    """The backbone's ``forward``: the features of a batch that carries some, else what the backbone computes."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward
        self._pending: tuple[Tensor, ...] | None = None

    def before(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        samples = kwargs.get('data_samples') or []
        self._pending = None
        if samples and 'features' in samples[0]:
            device = next(model.parameters()).device
            stacked = zip(*(sample.features for sample in samples))
            self._pending = tuple(torch.stack(maps).to(device).float() for maps in stacked)

    def forward(self, images: Tensor) -> Any:
        return self._forward(images) if self._pending is None else self._pending


def _check_frozen(backbone: nn.Module) -> None:
    trained = [name for name, value in backbone.named_parameters() if value.requires_grad]
    active = [
        name
        for name, part in backbone.named_modules()
        if part.training and not any(part.children())
    ]
    for what, names in (('trains', trained), ('has in training mode', active)):
        if names:
            raise ValueError(
                f'features can be cached if the whole backbone is frozen (frozen_stages), '
                f'this {type(backbone).__name__} {what} {listed(names)}'
            )


def _check_padding(preprocessor: nn.Module) -> None:
    for augment in getattr(preprocessor, 'batch_augments', None) or ():
        if type(augment).__name__ != 'BatchFixedSizePad':
            raise ValueError(
                f'cached features need a fixed preprocessor: batch_augments may hold BatchFixedSizePad, '
                f'got {type(augment).__name__}'
            )


def _key(runner: Runner, model: Any, dataset: SeededViews) -> str:
    """Stands for all that features depend on, except for the images."""
    config = runner.cfg
    parts = [config.model.backbone, config.model.get('data_preprocessor')]
    parts += [config.train_dataloader.dataset, len(dataset)]
    digest = hashlib.blake2b(json.dumps(parts, default=str, sort_keys=True).encode(), digest_size=8)
    for value in model.backbone.state_dict().values():
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@torch.no_grad()
def _compute(runner: Runner, model: Any, dataset: SeededViews, cache: FeatureCache) -> None:
    """Write the views that are missing, each process its share."""
    rank, processes = get_dist_info()
    views = len(dataset)
    if rank == 0 and not cache.is_made():
        shapes = [each.shape for each in _maps_of(model, dataset[0])]
        size = 2 * views * sum(shape.numel() for shape in shapes)
        runner.logger.info(f'features of {views} views need {size / 1e9:.2f} GB in {cache.folder}')
        cache.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache.folder).free
        if size > 0.95 * free:
            raise ValueError(
                f'{cache.folder}: features of {views} views need {size / 1e9:.2f} GB, '
                f'{free / 1e9:.2f} GB are free: take fewer views, or another folder'
            )
        cache.make(views, shapes)
    barrier()
    missing = cache.missing()
    barrier()  # before others write
    own = missing[rank::processes]
    for number, view in enumerate(own):
        sample = dataset[view]
        digest = digest_of(sample['inputs'])
        cache.write(view, digest, _maps_of(model, sample))
        if number % max(len(own) // 10, 1) == 0:
            runner.logger.info(f'features of {number} of {len(own)} views are computed')
    barrier()


def _maps_of(model: Any, sample: dict[str, Any]) -> list[Tensor]:
    """Compute the backbone's maps of a single sample, ``(C, H, W)`` float16."""
    data = model.data_preprocessor(pseudo_collate([sample]), training=True)
    maps = [each[0].half().cpu() for each in model.backbone(data['inputs'])]
    if not all_finite(maps):
        raise ValueError('a feature is NaN, or too large for float16')
    return maps
