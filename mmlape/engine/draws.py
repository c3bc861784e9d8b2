"""Random numbers of the data that depend on the place in the data and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from mmengine.device import get_device
from mmengine.dist import get_dist_info
from torch.utils.data import DataLoader

__all__ = ['DATA', 'STEP', 'VALIDATION', 'Draws', 'PlacedBatches', 'StartingAt', 'seed_by']

# What random numbers are for; part of the keys of their states.
STEP, DATA, VALIDATION = 0, 1, 2


def seed_by(*key: int, devices: bool = True) -> None:
    """Set the generators of Python, NumPy and torch from integers >= 0.

    Args:
        key: Equal keys give equal states, different ones unrelated states.
        devices: Whether torch's generators of GPUs are set as well (not in a process that loads data).
    """
    # With their number: for NumPy, zeros at the end make no difference.
    words = np.random.SeedSequence((len(key), *key)).generate_state(8, np.uint32)
    random.seed(words[:4].tobytes())
    np.random.seed(words)
    seed = int(words[4]) << 32 | int(words[5])
    if devices and get_device() != 'cpu':
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(
            seed
        )  # the other keeps a stack trace for a GPU that comes later


class Draws:
    """The indices of one batch. Who iterates over them has the random state that belongs to each.

    torch's loader asks its dataset for one index after the other, in whichever process, by iterating over the batch; so
    all that is drawn while an image is loaded depends on the image's place in the data, not on what the process did
    before, nor on the number of workers. (No list: pickling one iterates over it.)

    Args:
        indices: What the batch sampler gave.
        key: The beginning of the keys.
        first: The place of the first index in the data of all processes.
        step: From one index to the next, the number of processes.
    """

    def __init__(self, indices: Sequence[Any], key: tuple[int, ...], first: int, step: int) -> None:
        self.indices, self.key, self.first, self.step = list(indices), key, first, step

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        for place, index in zip(count(self.first, self.step), self.indices, strict=False):
            seed_by(*self.key, place, devices=False)
            yield index


class PlacedBatches:
    """A batch sampler that can begin in the middle, and whose batches are :class:`Draws`.

    The batches before ``skip`` are drawn from the sampler and not loaded. Attributes that upstream asks batch samplers
    for (``sampler``, ``batch_size``, ``drop_last``) are those of ``batches``.

    Args:
        batches: Any batch sampler.
        seed: Of the run, the same in all processes.
        endless: Whether to begin again at the end, with the sampler's next epoch.

    Attributes:
        skip: How many batches the next iteration leaves out; 0 afterwards.
        epoch: Part of the keys; where ``endless``, places go on counting instead.
    """

    def __init__(self, batches: Any, seed: int, endless: bool = False) -> None:
        self.batches, self.seed, self.endless = batches, seed, endless
        self.skip = self.epoch = 0

    def __getattr__(self, name: str) -> Any:
        if name == 'batches':  # not there yet: while unpickled
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Draws]:
        # Not before the first batch is asked for: torch's loader makes two iterators and uses one.
        skip, self.skip = self.skip, 0
        key, (rank, processes) = (self.seed, DATA, self.epoch), get_dist_info()
        drawn = 0
        for number, indices in enumerate(self._passes()):
            if number >= skip:
                yield Draws(indices, key, drawn * processes + rank, processes)
            drawn += len(indices)

    def _passes(self) -> Iterator[Sequence[Any]]:
        yield from self.batches
        for epoch in count(1):
            if not self.endless:
                return
            if hasattr(self.batches.sampler, 'set_epoch'):
                self.batches.sampler.set_epoch(epoch)
            yield from self.batches


class StartingAt:
    """In place of the iterator of MMEngine's ``IterBasedTrainLoop``.

    The loop asks for the batches that a resumed run has had already, and throws them away; here they are not loaded.

    Args:
        loader: Begins where it is to go on.
        skip: How many batches the loop will ask for in vain.
    """

    def __init__(self, loader: DataLoader, skip: int) -> None:
        self._loader, self._skip = loader, skip
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> StartingAt:
        return self

    def __next__(self) -> Any:
        if self._skip:
            self._skip -= 1
            return None
        if self._iterator is None:
            self._iterator = iter(self._loader)
        return next(self._iterator)

    def skip_iter(self, number: int) -> None:
        """What newer versions of the loop call instead of asking."""
        self._skip -= number
