"""The hook that writes `report.html`."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, get_world_size, master_only
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmlape.apps.inference.samples import truth_is_scaled
from mmlape.atomic import atomic_write
from mmlape.checks import check_positive_int, check_type
from mmlape.compatibility import made_with
from mmlape.registry import HOOKS

from . import page
from .curves import NO_METRICS, best_scores, draw_curves, is_validation, read_curves, write_table
from .names import names_of
from .tally import Tally

_SCOPES = ('mmdet', 'mmseg', 'mmpretrain')  # whose data samples are counted


@HOOKS.register_module()
class ReportHook(Hook):
    """Writes ``report.html``, ``curves.png`` and ``curves.csv`` when the training ends.

    The page holds metrics, curves, the best and worst images of the last validation with truth and prediction, the
    confusion matrix, times, versions and the config; pictures and confusions where the validation pipeline loads
    annotations. It costs no pass of the network: the validation's own predictions are counted.

    Args:
        examples: How many of the best and of the worst images are shown. Default 4.
        out_dir: Where the files go. Default None: the work dir.
    """

    priority = 'VERY_LOW'

    def __init__(self, examples: int = 4, out_dir: str | None = None) -> None:
        self.examples = check_positive_int('examples', examples)
        check_type('out_dir', out_dir, str | None)
        self.out_dir = out_dir
        # Of this process's part of the last validation, then of all.
        self.tally: Tally | None = None
        self._scaled = False
        self._start = 0.0

    def before_train(self, runner: Runner) -> None:
        """Take the time."""
        self._start = time.monotonic()

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin to count."""
        dataset: Any = runner.val_loop.dataloader.dataset
        classes = getattr(dataset, 'metainfo', {}).get('classes')
        scope = runner.cfg.get('default_scope')
        self.tally = None
        if classes and scope in _SCOPES:
            self.tally = Tally(len(classes), self.examples, scope == 'mmdet')
        self._scaled = truth_is_scaled(dataset)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        """Count the predictions of a batch."""
        if self.tally is None:
            return
        for sample in outputs or ():
            scale = sample.get('scale_factor') if self._scaled else None
            self.tally.add(sample, None if scale is None else np.tile(scale, 2))

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Add up what the processes have counted."""
        first, *others = all_gather_object(self.tally)
        self.tally = first.merge(others) if first is not None else None

    @master_only
    def after_train(self, runner: Runner) -> None:
        """Write the files. A report that fails ends no training: it is logged."""
        try:
            self._write(runner)
        except Exception as error:  # whatever it is, the training is complete
            runner.logger.log(logging.WARNING, 'no report.html: %r', error, exc_info=True)

    def _write(self, runner: Runner) -> None:
        work_dir = Path(runner.work_dir)
        out = Path(self.out_dir or work_dir)
        rows = read_curves(work_dir)
        if not rows:  # MMEngine's LocalVisBackend is switched off
            return
        validated = [row for row in rows if is_validation(row)]
        hook = (runner.cfg.get('default_hooks') or {}).get('checkpoint') or {}
        names = [name for name in (validated or [{}])[-1] if name not in NO_METRICS]
        preferred = [name for name in (hook.get('save_best'), 'mIoU') if name in names]
        best = next(iter([*preferred, *names]), None)
        rules: dict[str, str] = {}  # rules of save_best, by metric
        for each in runner.hooks:
            if isinstance(each, CheckpointHook) and each.save_best:
                rules.update(zip(each.key_indicators, each.rules))
        at_best = best_scores(rows, best, rules.get(best) == 'less') if best else {}
        write_table(rows, out / 'curves.csv')
        draw_curves(rows, best, out / 'curves.png', names_of(at_best).get(best or ''))
        sections = [
            ('Metrics', page.scores(at_best, validated[-1]) if best else ''),
            ('Curves', page.picture(out / 'curves.png')),
            *self._errors(runner),
            ('Times', page.table(self._times(rows))),
            ('Made with', page.table([*made_with(), ('device', _device())])),
            ('Config', page.folded(runner.cfg.pretty_text, 'the complete config')),
        ]
        atomic_write(out / 'report.html', page.page(out.resolve().name, sections).encode())
        runner.logger.info(f'report: {out / "report.html"}')

    def _errors(self, runner: Runner) -> list[tuple[str, str]]:
        if self.tally is None:
            return []
        meta = runner.val_loop.dataloader.dataset.metainfo
        classes, palette = meta['classes'], meta.get('palette')
        palette = None if isinstance(palette, str) else palette
        return [
            (f'{name} images of the last validation, truth left and prediction right', pictures)
            for name, pictures in (
                ('Best', page.examples(self.tally.best, classes, palette)),
                ('Worst', page.examples(self.tally.worst, classes, palette)),
            )
        ] + [('Confusion matrix', page.confusion(self.tally, classes))]

    def _times(self, rows: list[dict[str, float]]) -> list[tuple[str, str]]:
        found = [('this run', f'{(time.monotonic() - self._start) / 60:.1f} minutes')]
        steps = [row for row in rows if 'loss' in row]
        for key, name in (('time', 'a step'), ('data_time', 'of it waiting for data')):
            if values := [row[key] for row in steps if key in row]:
                found.append((name, f'{np.median(values):.3g} s (median)'))
        if values := [row['memory'] for row in steps if row.get('memory')]:
            found.append(('GPU memory', f'{max(values):.0f} MB'))
        return [*found, ('processes', str(get_world_size()))]


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f'{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads'
