"""Resume a training so that it ends as an uninterrupted one."""

import random
from bisect import bisect
from collections.abc import Iterator
from inspect import signature
from itertools import chain, count, islice, repeat
from typing import Any

import numpy as np
import torch
from mmengine.device import get_device
from mmengine.dist import broadcast, broadcast_object_list, get_dist_info
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from mmlape.registry import HOOKS

from .resume_state import images_per_step

STEP, DATA, VALIDATION = 0, 1, 2  # purpose of a random state, part of its key
_SAMPLING = ('batch_size', 'shuffle', 'sampler', 'batch_sampler', 'drop_last')  # DataLoader options


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Make a training a function of its seed and the iteration, so that a resumed run equals an uninterrupted one.

    MMEngine restores weights, optimizer, schedules, EMA and log. Here the random state of an iteration comes from the
    seed and the iteration, that of an image from the seed and its position in the data, for any number of workers. A
    resumed run continues with the next batch, with the seed of the checkpoint (with another batch size, after the
    images that were seen); an interrupted validation is run. All processes validate with the buffers of the first one,
    which checkpoints hold. Not covered: transforms that hold a random generator or images.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self._record, self._last = dict[str, Any](), dict[str, Any]()
        self._batches: Any = None
        self._key: tuple[int, ...] = ()
        self._epoch = self._done = self._skipped = 0
        self._validated = False

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Read seed and position from a checkpoint."""
        meta, hub = (checkpoint.get(name) for name in ('meta', 'message_hub'))
        # In a file of weights alone, these may be anything; a resumed file was checked before (ResumeCheckHook).
        self._record = (meta.get('exact_resume') or {}) if isinstance(meta, dict) else {}
        info = (hub.get('runtime_info') or {}) if isinstance(hub, dict) else {}
        self._last = {key: info[key] for key in ('epoch', 'iter') if key in info}

    def before_run(self, runner: Runner) -> None:
        """Register the part that runs after all other hooks."""
        if not any(isinstance(hook, _AfterOthers) for hook in runner.hooks):
            runner.register_hook(_AfterOthers(self), priority='LOWEST')

    def before_train(self, runner: Runner) -> None:
        """Set the seed and the position in the data."""
        loop, old = runner.train_loop, runner.train_loop.dataloader
        if not loop.iter:  # nothing was resumed: `load_from` brings weights alone
            self._record, self._last = {}, {}
        first_seed = [runner.seed]
        broadcast_object_list(first_seed)
        self._seed = self._record.get('seed', first_seed[0])
        self._key = (self._seed + runner.seed - first_seed[0],)  # differs with diff_rank_seed only
        endless = isinstance(loop, IterBasedTrainLoop)
        known = type(old) is DataLoader and (endless or isinstance(loop, EpochBasedTrainLoop))
        if not known or isinstance(old.dataset, IterableDataset) or old.batch_sampler is None:
            kinds = ', '.join(type(each).__name__ for each in (old.dataset, old, loop))
            runner.logger.warning(f'ExactResumeHook cannot restore the position in data: {kinds}')
            return
        batches = _batch_sampler(runner.cfg.get('train_dataloader'), old, self._seed)
        self._batches = SeededBatches(batches, self._seed, endless)
        if 'place' in self._record:
            place = self._record['place'] * self._record['images'] // images_per_step(old)
        else:  # a checkpoint without a record
            place = loop.iter if endless else loop.iter - loop.epoch * len(old)
            place = place if endless or 0 <= place <= len(old) else 0
        self._done = self._batches.skip = place
        names = [name for name in signature(DataLoader).parameters if name not in _SAMPLING]
        options = {name: getattr(old, name) for name in names}
        loop.dataloader = DataLoader(batch_sampler=self._batches, **options)
        if endless:
            skipped = 0 if getattr(loop, 'fast_forward_on_resume', False) else loop.iter
            loop.dataloader_iterator = ResumedIterator(repeat(None, skipped), loop.dataloader)
        elif self._done:
            # The log counts batches from the beginning of the epoch.
            run = loop.run_iter
            loop.run_iter = lambda index, batch: run(self._skipped + index, batch)

    def before_train_epoch(self, runner: Runner) -> None:
        """Count batches from the resumed position."""
        self._epoch = runner.epoch
        if self._batches is not None:
            self._done = self._skipped = self._batches.skip
            self._batches.epoch = runner.epoch

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Set the random state of this iteration."""
        self._done += 1
        self._validated = False
        set_random_state(*self._key, STEP, runner.iter)

    def before_val_epoch(self, runner: Runner) -> None:
        """Set the random state of this validation; checkpoints saved from now on are validated."""
        self._validated = True
        if self._key:  # within a training
            set_random_state(*self._key, VALIDATION, runner.iter)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record seed and position."""
        meta, loop = checkpoint.setdefault('meta', {}), runner.train_loop
        in_epoch = isinstance(loop, IterBasedTrainLoop) or meta['epoch'] == self._epoch
        record = dict(place=self._done if in_epoch else 0, images=images_per_step(loop.dataloader))
        meta['exact_resume'] = dict(seed=int(self._seed), **record, validated=self._validated)


class _AfterOthers(Hook):
    """The part that needs all other hooks to have run."""

    def __init__(self, exact: ExactResumeHook) -> None:
        self.exact = exact

    def before_train(self, runner: Runner) -> None:
        """Validate, if that was due at the checkpoint."""
        exact, loop = self.exact, runner.train_loop
        # MMEngine has set the next epoch and iteration; until they begin, a resumed run has the last ones.
        runner.message_hub.update_info_dict(exact._last)
        by_epoch = isinstance(loop, EpochBasedTrainLoop)
        missing = exact._record.get('validated') is False and not (by_epoch and exact._done)
        if runner.val_loop is not None and missing:
            step, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
            interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, step + 1) - 1]
            if step >= loop.val_begin and (step % interval == 0 or step == end):
                runner.logger.info('this checkpoint has not been validated: validating now')
                runner.val_loop.run()

    def before_val_epoch(self, runner: Runner) -> None:
        """Broadcast the buffers of the first process, which checkpoints hold."""
        for buffer in runner.model.buffers() if get_dist_info()[1] > 1 else ():
            broadcast(buffer)


class ResumedIterator(chain):
    """None for each batch that a resumed IterBasedTrainLoop skips, and then batches."""

    def skip_iter(self, number: int) -> None:
        """Skip as newer versions of the loop do."""
        next(islice(self, number, number), None)


class SeededBatch:
    """The indices of a batch; iterating sets the random state of each from its position, in the process that loads it.
    Not a list, since pickling one iterates over it."""

    def __init__(self, indices: Any, key: tuple[int, ...], places: range) -> None:
        self.indices, self.key, self.places = list(indices), key, places

    def __iter__(self) -> Iterator[Any]:
        for place, index in zip(self.places, self.indices, strict=True):
            set_random_state(*self.key, place, devices=False)
            yield index


class SeededBatches:
    """A batch sampler of :class:`SeededBatch` that skips the first ``skip`` batches, once, without loading them.

    If ``endless``, it restarts at the end with the next epoch of the sampler, and positions continue.
    """

    def __init__(self, batches: Any, seed: int, endless: bool = False) -> None:
        self.batches, self.seed, self.endless = batches, seed, endless
        self.sampler, self.batch_size = batches.sampler, getattr(batches, 'batch_size', None)
        self.skip = self.epoch = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        # Reset in the generator, not before: torch's loader makes two iterators and uses one.
        skip, self.skip = self.skip, 0
        key, (rank, processes), seen = (self.seed, DATA, self.epoch), get_dist_info(), 0
        for epoch in count(1):
            for indices in self.batches:
                first, seen, skip = seen * processes + rank, seen + len(indices), skip - 1
                if skip < 0:
                    places = range(first, seen * processes, processes)
                    yield SeededBatch(indices, key, places)
            if not self.endless:
                return
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)


def set_random_state(*key: int, devices: bool = True) -> None:
    """Set the generators of Python, NumPy and torch (with ``devices``, of GPUs too) from integers >= 0."""
    # With their number, because NumPy ignores zeros at the end.
    words = np.random.SeedSequence((len(key), *key)).generate_state(8, np.uint32)
    random.seed(words[:4].tobytes())
    np.random.seed(words)
    # Without GPUs, torch.manual_seed saves a stack trace for a later initialization of CUDA.
    generators = torch if devices and get_device() != 'cpu' else torch.default_generator
    generators.manual_seed(int(words[4]) << 32 | int(words[5]))


def _batch_sampler(config: Any, loader: DataLoader, seed: int) -> Any:
    """A batch sampler like the loader's in its initial state, for this seed."""
    config = config if isinstance(config, dict) else {}
    single, grouped = config.get('sampler'), config.get('batch_sampler')
    if not isinstance(single, dict) or not isinstance(grouped, (dict, type(None))):
        return loader.batch_sampler  # the user's own
    sampler = DATA_SAMPLERS.build(single, default_args=dict(dataset=loader.dataset, seed=seed))
    if grouped is None:
        return BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)
    options = dict(sampler=sampler, batch_size=config.get('batch_size'))
    return DATA_SAMPLERS.build(grouped, default_args=options)
