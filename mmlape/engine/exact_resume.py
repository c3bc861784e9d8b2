"""A training that goes on as if it had never stopped."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from mmengine.dist import broadcast, broadcast_object_list, get_dist_info
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from mmlape.registry import HOOKS

from .draws import STEP, VALIDATION, PlacedBatches, StartingAt, seed_by

__all__ = ['ExactResumeHook']

_KEY = 'exact_resume'


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Make a training a function of its seed and of the step, so that it can be resumed without a difference.

    MMEngine restores weights, optimizer, schedules, EMA and log, but random numbers begin anew, an epoch begins at its
    start, workers draw the same in every epoch, a run without a seed gets another order of the data, and a validation
    that was interrupted is left out. With this hook

    * the random state of an iteration (Python, NumPy, torch, GPUs) is made from the seed and the iteration; that of
      an image that is loaded, from the seed and its place in the data. It is the same for any number of workers;
    * a resumed run goes on at the next batch, also in the middle of an epoch, without loading those before it;
    * the seed is that of the checkpoint, also where the config has none;
    * a validation that was due at the checkpoint and had not ended is made up for;
    * all processes validate with the buffers (running statistics of BatchNorm) of the first one, which are those that
      checkpoints hold. In MMEngine each has its own, and all have the first one's after resuming.

    Places in the data are counted over all processes: with another number of processes, or of images, a run goes on
    behind the images that were seen, rounded down to whole steps. The hook replaces the sampler of the training's
    loader by an equal one. It does so for loaders with an index (no ``IterableDataset``, no ``batch_size=None``) in
    MMEngine's two training loops; otherwise a warning says that the place in the data is not kept.

    In any config::

        default_hooks = dict(exact_resume=dict(type='mmlape.ExactResumeHook'))

    Transforms that keep a random generator, or images that they have seen, in themselves are beyond its reach.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self._record: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._batches: PlacedBatches | None = None
        self._key: tuple[int, ...] = ()
        self._epoch = self._done = 0
        self._validated = self._told = False

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep what a checkpoint says about seed and place, if it is resumed."""
        if runner._resume:
            self._record = (checkpoint.get('meta') or {}).get(_KEY) or {}
            info = (checkpoint.get('message_hub') or {}).get('runtime_info') or {}
            self._last = {key: info[key] for key in ('epoch', 'iter') if key in info}

    def before_run(self, runner: Runner) -> None:
        """Some things are done after all other hooks."""
        if not any(isinstance(hook, _AfterOthers) for hook in runner.hooks):
            runner.register_hook(_AfterOthers(self), priority='LOWEST')

    def before_train(self, runner: Runner) -> None:
        """Put the place in the data in order."""
        loop, loader = runner.train_loop, runner.train_loop.dataloader
        first_seed = [runner.seed]
        broadcast_object_list(first_seed)
        self._seed = self._record.get('seed', first_seed[0])
        # Other than 0 with diff_rank_seed only.
        self._key = (self._seed + runner.seed - first_seed[0],)
        endless = isinstance(loop, IterBasedTrainLoop)
        indexed = loader.batch_sampler is not None and not isinstance(
            loader.dataset, IterableDataset
        )
        if not indexed or not isinstance(loop, (EpochBasedTrainLoop, IterBasedTrainLoop)):
            runner.logger.warning(
                'ExactResumeHook: the place in the data is not kept, since the training has a loader without '
                f'indices, or a loop of its own ({type(loader.dataset).__name__}, {type(loop).__name__})'
            )
        else:
            sampler, batches = _samplers(runner._train_dataloader, loader, self._seed)
            self._batches = PlacedBatches(batches, self._seed, endless)
            self._done = self._batches.skip = self._place(runner)
            # torch refuses to change what a loader has been made with, and others hold on to the loader.
            for name, value in (('sampler', sampler), ('batch_sampler', self._batches)):
                object.__setattr__(loader, name, value)
            loader._iterator = None
            if endless:
                asked = 0 if getattr(loop, 'fast_forward_on_resume', False) else loop.iter
                loop.dataloader_iterator = StartingAt(loader, asked)
            elif self._done:
                # In the epoch that has begun, batches are counted from its beginning, as in the log.
                loop.run_iter = partial(_run_iter, loop, self._done)
                runner.logger.info(
                    f'epoch {loop.epoch + 1} goes on after {self._done} of {len(loader)} batches'
                )

    def before_train_epoch(self, runner: Runner) -> None:
        """Begin to count."""
        self._epoch = runner.epoch
        if self._batches is not None:
            self._done = self._batches.skip
            self._batches.epoch = runner.epoch

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Set the random state of this iteration."""
        self._done += 1
        self._validated = False
        seed_by(*self._key, STEP, runner.iter)

    def after_train_epoch(self, runner: Runner) -> None:
        """The next epoch is a whole one."""
        vars(runner.train_loop).pop('run_iter', None)

    def before_val_epoch(self, runner: Runner) -> None:
        """Set the random state of this validation; what is saved from now on knows the outcome."""
        self._validated = True
        if self._key:  # within a training
            seed_by(*self._key, VALIDATION, runner.iter)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record seed and place."""
        meta, loop = checkpoint.setdefault('meta', {}), runner.train_loop
        in_epoch = isinstance(loop, IterBasedTrainLoop) or meta['epoch'] == self._epoch
        meta[_KEY] = dict(
            seed=int(self._seed),
            place=self._done if in_epoch else 0,
            images=_images_per_step(loop.dataloader),
            validated=self._validated,
        )
        every = getattr(runner.optim_wrapper, '_accumulative_counts', 1)
        if meta['iter'] % every and meta['iter'] != loop.max_iters and not self._told:
            self._told = True
            runner.logger.warning(
                f'the checkpoint of iteration {meta["iter"]} lies between two steps of the optimizer '
                f'(accumulative_counts={every}): gradients of {meta["iter"] % every} iterations are not in it, so '
                f'a run that goes on from it is not equal to this one. Save at multiples of {every} iterations.'
            )

    def _place(self, runner: Runner) -> int:
        """How many batches of this epoch (of all epochs, in a loop of iterations) have been trained with."""
        loop, loader = runner.train_loop, runner.train_loop.dataloader
        if 'place' in self._record:
            return self._record['place'] * self._record['images'] // _images_per_step(loader)
        if isinstance(loop, IterBasedTrainLoop):
            return loop.iter
        place = loop.iter - loop.epoch * len(loader)  # a checkpoint without a record
        return place if 0 <= place <= len(loader) else 0


class _AfterOthers(Hook):
    """What relies on all other hooks having done their part."""

    def __init__(self, exact: ExactResumeHook) -> None:
        self.exact = exact

    def before_train(self, runner: Runner) -> None:
        """Validate, if that was due at the checkpoint."""
        exact = self.exact
        # MMEngine has put the next ones there; until they begin, a run that goes on has the last ones.
        runner.message_hub.update_info_dict(exact._last)
        due = exact._record.get('validated') is False
        if due and _validation_due(runner.train_loop, exact._done):
            runner.logger.info('the validation of this checkpoint had not ended: it is made up for')
            runner.val_loop.run()

    def before_val_epoch(self, runner: Runner) -> None:
        """All processes validate what the first one would save."""
        if get_dist_info()[1] > 1:
            for buffer in runner.model.buffers():
                broadcast(buffer)


def _samplers(config: Any, loader: DataLoader, seed: int) -> tuple[Any, Any]:
    """Samplers as those of a loader, before anything was drawn from them, for this seed."""
    config = config if isinstance(config, dict) else {}
    sampler, batches = loader.sampler, loader.batch_sampler
    grouped = config.get('batch_sampler')
    if not isinstance(config.get('sampler'), dict) or not isinstance(grouped, (dict, type(None))):
        return sampler, batches  # built by the user
    sampler = DATA_SAMPLERS.build(
        copy.deepcopy(config['sampler']), default_args=dict(dataset=loader.dataset, seed=seed)
    )
    if grouped is not None:
        return sampler, DATA_SAMPLERS.build(
            copy.deepcopy(grouped),
            default_args=dict(sampler=sampler, batch_size=config.get('batch_size')),
        )
    return sampler, BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)


def _images_per_step(loader: DataLoader) -> int:
    batch = getattr(loader.batch_sampler, 'batch_size', None) or 1
    return batch * get_dist_info()[1]


def _run_iter(loop: EpochBasedTrainLoop, before: int, idx: int, data_batch: Any) -> None:
    type(loop).run_iter(loop, before + idx, data_batch)


def _validation_due(loop: Any, place: int) -> bool:
    """Whether the loop would validate after its last step."""
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    if loop.runner.val_loop is None or (by_epoch and place):
        return False
    loop._decide_current_val_interval()
    step, last = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
    return step >= loop.val_begin and (step % loop.val_interval == 0 or step == last)
