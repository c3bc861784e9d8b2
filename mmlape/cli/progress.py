"""Lines of a run on the screen: the time that a training will take, its progress bar, and what validations found."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn

from mmlape.apps.report import for_people

from .program import Screen

# Models of `mmlape fit` that a CPU trains in minutes, by the scope of a config; others have more parameters.
_SMALL = {'mmdet': 'micro-adapter', 'mmseg': 'micro-segmenter'}
_SMALL_PARAMETERS = 5e6
_LONG = 1800  # seconds
# The beginnings of log lines that the bar replaces.
_STEPS = ('Epoch(train)', 'Iter(train)')
# Those of lines that stay in the log file: what they say is said by :class:`ScoresHook`, or is of no use to a person.
_UPSTREAM = re.compile(
    r'(Epoch|Iter)\((val|test)\)|Evaluating \w+\.\.\.|\w+_mAP_copypaste|\n\+[-+]+\n\| category |Exp name|'
    'Saving checkpoint at|The (previous )?best checkpoint '
)
_OF_CLASSES = re.compile(
    r'per class results:|\n\+[-+]+\n\| +Class '
)  # MMSegmentation's, which report.html has


class TimeHook(Hook):
    """Log the device, the steps and the time that they will take, once the first steps are done: after three that took
    five seconds, or after twenty."""

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        """Count the steps of this run."""
        self._steps = 0

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Say it once. The first step is not typical: memory is allocated, operators are chosen."""
        self._steps += 1
        if self._steps == 1:
            self._start = time.monotonic()
        elapsed = time.monotonic() - self._start
        if self._steps == 20 or (3 <= self._steps < 20 and elapsed > 5):
            left = runner.max_iters - runner.iter - 1
            seconds = elapsed / (self._steps - 1) * left
            runner.logger.info(described(runner, left, _images(data_batch), seconds))
            self._steps = 20


def described(runner: Runner, steps: int, images: int, seconds: float) -> str:
    """The line of :class:`TimeHook`; on a CPU it names a model that is faster."""
    count, on_cpu = get_world_size(), get_device() == 'cpu'
    if on_cpu:
        device = f'CPU ({torch.get_num_threads()} thread{"s" * (torch.get_num_threads() > 1)})'
    else:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else get_device()
    device = f'{count} x {device}' if count > 1 else device
    batch = f' of {images * count} image{"s" * (images * count > 1)}' if images else ''
    text = f'{device}, {steps:,} step{"s" * (steps != 1)}{batch} left: about {duration(seconds)}, without validations'
    small = _SMALL.get(runner.cfg.get('default_scope'))
    size = sum(parameter.numel() for parameter in runner.model.parameters())
    if on_cpu and small and seconds > _LONG and size > _SMALL_PARAMETERS:
        text += f'; on a CPU, `mmlape fit DATA --model {small}` takes minutes (`mmlape fit --list`)'
    return text


def duration(seconds: float) -> str:
    """``'8.5 hours'``."""
    for unit, size, digits in (('seconds', 1, 0), ('minutes', 60, 0), ('hours', 3600, 1)):
        if seconds < (90 * size if unit != 'hours' else 48 * size):
            return f'{seconds / size:.{digits}f} {unit}'
    return f'{seconds / 86400:.1f} days'


def _images(batch: Any) -> int:
    inputs = batch.get('inputs') if isinstance(batch, dict) else None
    return len(inputs) if isinstance(inputs, (Sequence, torch.Tensor)) else 0


class ScoresHook(Hook):
    """Log what validations and tests have measured by the names that people use."""

    priority = 'LOW'  # before PictureHook

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Log one line."""
        found = ', '.join(f'{name} {value:.4g}' for name, value in _measured(runner, 'val').items())
        done = f'epoch {runner.epoch}' if runner.epoch else f'step {runner.iter}'
        runner.logger.info(f'validation after {done}: {found or "nothing was measured"}')

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Log a line for each metric."""
        lines = [f'  {name:<32} {value:.4g}' for name, value in _measured(runner, 'test').items()]
        runner.logger.info('\n'.join(['measured:', *lines]))


def _measured(runner: Runner, mode: str) -> dict[str, float]:
    found, _ = runner.log_processor.get_log_after_epoch(runner, 1, mode)
    return for_people({name.removeprefix(f'{mode}/'): value for name, value in found.items()})


def _on_screen(runner: Runner) -> list[logging.StreamHandler]:
    handlers = [each for each in runner.logger.handlers if isinstance(each, logging.StreamHandler)]
    return [each for each in handlers if not isinstance(each, logging.FileHandler)]


def show_scores(runner: Runner, classes: bool = True) -> None:
    """Show what is measured by :class:`ScoresHook`; upstream's lines of it go to the log file, those of ``classes`` if
    they are not wanted."""
    runner.register_hook(ScoresHook())
    for handler in _on_screen(runner):
        handler.addFilter(lambda record: not _UPSTREAM.match(str(record.msg)))
        if not classes:
            handler.addFilter(lambda record: not _OF_CLASSES.match(str(record.msg)))


class BarHook(Hook):
    """Move a progress bar."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task = bar.add_task('', total=None, loss='')

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Show the step and the mean loss of the last ones."""
        loss = runner.message_hub.get_scalar('train/loss').mean(10)
        done, total = runner.iter + 1, runner.max_iters
        self.bar.update(
            self.task,
            completed=done,
            total=total,
            description=f'step {done} of {total}',
            loss=f'loss {loss:.3f}',
            refresh=done == total,
        )


@contextmanager
def show_progress(runner: Runner, bar: bool) -> Iterator[None]:
    """Log the time of the training that is run meanwhile and, with ``bar`` on a terminal, show a progress bar instead
    of the log lines of steps."""
    runner.register_hook(TimeHook())
    show_scores(runner, classes=False)
    if not (bar and sys.stdout.isatty() and is_main_process()):
        yield
        return
    columns = (*Progress.get_default_columns()[:2], TextColumn('{task.fields[loss]}'))
    console = Console()  # what the shared one knows of the terminal may be old
    with Progress(*columns, TimeRemainingColumn(), transient=True, console=console) as progress:
        runner.register_hook(BarHook(progress))
        above = sys.stdout  # rich prints above the bar
        sys.stdout = Screen(
            above
        )  # it joins lines, of which the one around the command would drop none
        for handler in _on_screen(runner):
            handler.setStream(sys.stdout)
            handler.addFilter(lambda record: not str(record.msg).startswith(_STEPS))
        try:
            yield
        finally:
            sys.stdout = above
