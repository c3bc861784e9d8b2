"""Name the process that hangs, and end the training."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mmengine.dist import get_comm_device, get_dist_info
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch.distributed import distributed_c10d

from mmlape.checks import check_number
from mmlape.registry import HOOKS

from .watch import Board, Note, Watch

__all__ = ['HungProcessHook']

# Of the group's own timeout, after which torch ends the processes that wait, with an error that names nobody.
_SHARE = 0.9
_SECONDS_TO_SPEAK = 5
# NCCL's timeout, the shortest of torch's own.
_SHORTEST = 600


@HOOKS.register_module()
class HungProcessHook(Hook):
    """Name the process that hangs, and end the others, which wait for it.

    Each process notes in the store of the process group where it is (iteration and part of it, validation, saving) and
    where its Python stands. When nothing has moved for ``timeout`` seconds in any process, and some wait for another,
    one error says which one that is: rank, machine, pid, iteration, for how long, and its stack. So it is with a
    process that does not answer at all (stopped, or its machine is gone). Then all end with exit code 1, and
    ``--resume`` goes on.

    A process moves while its stack changes, or while it falls asleep and wakes often, as where it reads files:
    evaluation, compilation and loading are no hangs, however long they take. In one call that takes long (a file that
    is written, workers that start), a training step may stand for ``timeout`` seconds; the start, the first iteration,
    validation and saving for nine tenths of the process group's own timeout (``env_cfg.dist_cfg.timeout``; torch's
    defaults are 600 seconds with NCCL, 1800 with gloo), after which torch would end the processes without a name.
    ``timeout`` itself counts up to these nine tenths.

    If all processes stand alike, or one that others wait for still moves, a warning says where they are, and nothing
    is ended. So it is in a training of a single process.

    In any config::

        default_hooks = dict(hung=dict(type='mmlape.HungProcessHook'))

    Each process writes and reads notes 20 times per ``timeout`` (at least every 15 seconds).

    Args:
        timeout: Seconds. Default 300.

    Raises:
        TypeError, ValueError: If ``timeout`` is not a number above 0.
    """

    # What other hooks do is done before the next thing begins.
    priority = 'LOWEST'

    def __init__(self, timeout: float = 300) -> None:
        self.timeout = check_number('timeout', timeout, above=0)
        self._watch: Watch | None = None
        self._handle: Any = None

    def before_run(self, runner: Runner) -> None:
        """Begin to watch."""
        self.after_run(runner)
        rank, size = get_dist_info()
        board, limit, slow_limit = None, self.timeout, self.timeout
        if size > 1:
            slow_limit = _SHARE * _group_timeout()
            limit = min(limit, slow_limit)
            board = Board(runner.timestamp, rank, size)
        hung, still = partial(_end, runner, rank), partial(_warn, runner, rank, limit)
        # The frame in which the runner trains, validates or tests.
        self._watch = Watch(board, limit, slow_limit, hung, still, sys._getframe(2))
        # Counted here: asked for its iteration, a runner that only tests would build the training's data sets.
        self._is_first, self._step = True, -1
        self._note((-1, 0), 'it starts', True)
        self._watch.start()

    def after_run(self, runner: Runner) -> None:
        """End."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def before_train(self, runner: Runner) -> None:
        """Watch the model's forward pass."""
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        self._handle = model.register_forward_hook(self._computed)
        self._step = runner.iter - 1
        self._note((runner.iter, 0), 'it loads the first batch', True)

    def after_train(self, runner: Runner) -> None:
        """The forward pass is not watched any more."""
        self._handle.remove()

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Data are there."""
        self._step = runner.iter
        self._note((self._step, 1), f'iteration {self._step + 1}, forward pass', self._is_first)

    def _computed(self, model: torch.nn.Module, *_: Any) -> None:
        if model.training and not torch.compiler.is_compiling():
            doing = f'iteration {self._step + 1}, backward pass or step'
            self._note((self._step, 2), doing, self._is_first)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """The step is done, and what hooks do after it."""
        self._is_first = False
        self._note(
            (self._step, 3), f'after iteration {self._step + 1}, loading data or in a hook', False
        )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """In the first process alone, so that it is no place to compare."""
        self._note(None, f'iteration {self._step + 1}, saving a checkpoint', True)

    def before_val_epoch(self, runner: Runner) -> None:
        """Validation begins."""
        done = self._step + 1
        self._note((done, 0), f'after iteration {done}, validation', True)

    def before_test_epoch(self, runner: Runner) -> None:
        """A test begins."""
        self._note((0, 0), 'it tests', True)

    def _note(self, place: tuple[int, int] | None, doing: str, is_slow: bool) -> None:
        if self._watch is not None:
            self._watch.at(place, doing, is_slow)


def _group_timeout() -> float:
    """Seconds after which torch gives up waiting for a process."""
    group = distributed_c10d._get_default_group()
    try:
        return group._get_backend(get_comm_device()).options._timeout.total_seconds()
    except (AttributeError, RuntimeError):  # a backend that does not say it
        return _SHORTEST


def _end(runner: Runner, rank: int, hung: list[int], notes: list[Note]) -> None:
    """Say it, and end this process, whatever the main thread does."""
    well = [other for other, note in enumerate(notes) if other not in hung and not note.has_ended]
    if rank != well[0]:
        # One says it; if it cannot, all do.
        time.sleep(_SECONDS_TO_SPEAK)
    lines = [_describe(other, notes, 'hangs') for other in hung]
    lines.append('The run stops here; --resume goes on from the last checkpoint.')
    _speak(runner.logger.error, '\n'.join(lines))
    os._exit(1)


def _warn(runner: Runner, rank: int, limit: float, notes: list[Note]) -> None:
    """Say where the processes are that others may wait for; the first of those that stand does."""
    if any(note.stands >= limit for note in notes[:rank]):
        return
    moving = [other for other, note in enumerate(notes) if max(note.stands, note.silent) < limit]
    verb, which = ('works', moving) if moving else ('stands', range(len(notes)))
    lines = [f'process {rank} of {len(notes)} has not moved for {notes[rank].stands:.0f} s:']
    lines += [_describe(other, notes, verb) for other in which]
    _speak(runner.logger.warning, '\n'.join(lines))


def _describe(rank: int, notes: list[Note], verb: str) -> str:
    note = notes[rank]
    text = f'process {rank} of {len(notes)}'
    if not note.beat:
        return f'{text} has not begun to train; nothing was heard of it for {note.silent:.0f} s'
    text = f'{text} {verb} (pid {note.pid} on {note.host}): {note.doing}'
    if note.silent > note.stands:
        text += f'; no answer for {note.silent:.0f} s (it is stopped, or its machine is gone)'
    elif note.stands:
        text += f', for {note.stands:.0f} s'
    return '\n'.join([f'{text}. Its Python is at', *note.stack])


def _speak(say: Callable[[str], None], text: str) -> None:
    """Write into the log; not for ever, should its file or its lock be what hangs."""
    speaker = threading.Thread(target=lambda: say(text), daemon=True)
    speaker.start()
    speaker.join(_SECONDS_TO_SPEAK)
