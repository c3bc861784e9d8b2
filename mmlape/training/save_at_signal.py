"""Save a training that SLURM is about to stop."""

from __future__ import annotations

import atexit
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mmengine.dist import all_reduce, broadcast_object_list
from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, Runner

from mmlape import preemption


class SaveAtSignal(Hook):
    """Save after the step in which SLURM's signal arrives in a process, and continue.

    Only if more time has passed since the last checkpoint than it took to write it.

    Args:
        save: Writes a checkpoint; ``saved`` is called after it and after each other one.
    """

    priority = 'LOWEST'  # after the checkpoint that is due at this step

    def __init__(self, save: Callable[[Runner], None]) -> None:
        self._save = save
        self._signal: str | None = None
        self._last, self._cost = time.monotonic(), 0.0

    def saved(self, since: float) -> None:
        """Remember when and for how long a checkpoint was written."""
        self._last = time.monotonic()
        self._cost = self._last - since

    def before_train(self, runner: Runner) -> None:
        """Listen, and keep data workers alive, which get the signal too."""
        preemption.listen()
        atexit.register(_kill_workers)
        self._last = time.monotonic()
        for loop in (runner._train_loop, runner._val_loop):
            if isinstance(loop, BaseLoop):
                loader = loop.dataloader
                loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Agree with the other processes whether there was a signal; the main one decides whether to save."""
        self._signal = preemption.asked() or self._signal
        anywhere = torch.tensor(float(self._signal is not None))
        all_reduce(anywhere, 'max')
        steps = getattr(runner.optim_wrapper, '_accumulative_counts', 1)
        if not anywhere.item() or (runner.iter + 1) % steps:  # accumulated gradients are not saved
            return
        unsaved = time.monotonic() - self._last
        decision = [unsaved > self._cost]
        broadcast_object_list(decision)
        says = f'{self._signal or "a signal in another process"}: {unsaved:.0f} s since the last checkpoint'
        self._signal = None
        if decision[0]:
            runner.logger.info(f'{says}, saving')
            self._save(runner)
        else:
            runner.logger.info(f'{says}, which took {self._cost:.0f} s: not saving')


def _start_worker(initialize: Callable[[int], None] | None, worker: int) -> None:
    preemption.ignore()
    if initialize is not None:
        initialize(worker)


def _kill_workers() -> None:
    """At exit, Python ends them by SIGTERM, which they ignore, and waits for them."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
