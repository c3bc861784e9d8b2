"""The hook that writes `report.html`."""

from __future__ import annotations

import logging
import platform
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import (
    all_gather_object,
    get_rank,
    get_world_size,
    is_main_process,
    master_only,
)
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmlape.apps.inference.samples import truth_is_scaled
from mmlape.apps.inference.score import KEY, SCORE
from mmlape.atomic import atomic_write
from mmlape.checks import check_positive_int, check_type, type_name
from mmlape.compatibility import made_with
from mmlape.registry import HOOKS
from mmlape.training.check_data import CheckDataHook
from mmlape.training.stop_hooks import unwrapped

from . import page
from .batch import BATCH, draw_batch
from .classes import class_table, score_figures
from .curves import (
    best_scores,
    draw_curves,
    is_validation,
    read_curves,
    unit_of,
    write_table,
)
from .names import NO_METRICS, names_of
from .rates import BINS
from .tally import Tally

_SCOPES = ('mmdet', 'mmseg', 'mmpretrain')  # whose data samples are counted
_LOGGED = 'val/boxes/'  # MMEngine logs what begins with val/


@HOOKS.register_module()
class ReportHook(Hook):
    """Writes ``report.html``, ``curves.png`` and ``curves.csv`` when the training ends, and before its first step
    ``training_batch.jpg``, augmented images with their labels.

    The page holds metrics, curves, what is right of each class, precision, recall and F1 of boxes over their score, the
    best and worst images with truth and prediction, the confusion matrix, times, versions and the config. Classes and
    pictures are of the best checkpoint's validation, else of the last one, where the validation pipeline loads
    annotations. It costs no pass of the network: the validation's own predictions are counted. Where that finds boxes,
    the score of their best F1 is logged, and stored in the checkpoints that were validated: ``mmlape.load`` takes it.

    Args:
        examples: How many of the best and of the worst images are shown. Default 4.
        out_dir: Where the files go. Default None: the work dir.
    """

    priority = 'NORMAL'  # before validations are logged, and before checkpoints are saved

    def __init__(self, examples: int = 4, out_dir: str | None = None) -> None:
        self.examples = check_positive_int('examples', examples)
        check_type('out_dir', out_dir, str | None)
        self.out_dir = out_dir
        # Of this process's part of the last validation, then of all; and that of the best checkpoint.
        self.tally: Tally | None = None
        self.best: Tally | None = None
        self._left = 0  # images of this process that are not counted yet
        self._validated = False  # the weights are those of the last validation
        self._best_before: list[Any] = []
        self._scaled = False
        self._start = 0.0
        self._batch: Path | None = None

    def before_train(self, runner: Runner) -> None:
        """Take the time, and draw training images. Images that cannot be drawn end no training: it is logged."""
        self._start = time.monotonic()
        if runner.cfg.get('default_scope') not in ('mmdet', 'mmseg') or not is_main_process():
            return
        try:
            dataset = runner.train_loop.dataloader.dataset
            self._batch = draw_batch(runner.cfg, self._folder(runner) / BATCH, dataset)
            runner.logger.info(f'the training data as the network sees them: {self._batch}')
        except Exception as error:  # whatever it is, the training can go on
            runner.logger.warning(f'no picture of the training data: {error!r}')

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Note that the weights change."""
        self._validated = False

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin to count."""
        dataset: Any = runner.val_loop.dataloader.dataset
        classes = getattr(dataset, 'metainfo', {}).get('classes')
        scope = runner.cfg.get('default_scope')
        self.tally, self._validated = None, False
        self._best_before = _best_scores(runner)
        if classes and scope in _SCOPES:
            known = runner.message_hub.log_scalars.get(f'{_LOGGED}score')
            score = known.current() if known else SCORE
            self.tally = Tally(len(classes), self.examples, scope == 'mmdet', score)
        self._scaled = truth_is_scaled(dataset)
        # MMEngine's sampler repeats some, so that all processes have as many; metrics leave them out too.
        self._left = len(range(get_rank(), len(dataset), get_world_size()))

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
        samples = (outputs or ())[: self._left]
        self._left -= len(samples)
        for sample in samples:
            scale = sample.get('scale_factor') if self._scaled else None
            self.tally.add(sample, None if scale is None else np.tile(scale, 2))

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Add up what the processes have counted, and log the rates at the best F1."""
        first, *others = all_gather_object(self.tally)
        self.tally = first.merge(others) if first is not None else None
        self._validated = True
        if self.tally is not None and self.tally.counts.true.any():
            place = self.tally.counts.best()
            rates = (0.0, 0.0, 0.0) if place is None else self.tally.counts.rates()[:, -1, place]
            figures = {
                name: round(float(rate), 4)
                for name, rate in zip(('precision', 'recall', 'F1'), rates)
            }
            figures['score'] = SCORE if place is None else place / BINS
            for name, value in figures.items():
                runner.message_hub.update_scalar(_LOGGED + name, value)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Store the score of the best F1 with the weights of which it is."""
        if not self._validated or self.tally is None:
            return
        if _best_scores(runner) != self._best_before:  # CheckpointHook has set them
            self.best = self.tally
        place = self.tally.counts.best()
        if place is not None:
            checkpoint.setdefault('meta', {})[KEY] = place / BINS

    @master_only
    def after_train(self, runner: Runner) -> None:
        """Write the files. A report that fails ends no training: it is logged."""
        try:
            self._write(runner)
        except Exception as error:  # whatever it is, the training is complete
            runner.logger.log(logging.WARNING, 'no report.html: %r', error, exc_info=True)

    def _folder(self, runner: Runner) -> Path:
        return Path(self.out_dir or runner.work_dir)

    def _write(self, runner: Runner) -> None:
        out, rows = self._folder(runner), read_curves(Path(runner.work_dir))
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
        curves = draw_curves(rows, best, out / 'curves.png', names_of(at_best).get(best or ''))
        sections = [
            ('Model', page.table(_model(runner))),
            ('Metrics', page.scores(at_best, validated[-1], unit_of(rows)) if best else ''),
            ('Curves', page.wide(curves.read_bytes(), 'png')),
            *self._classes(runner),
            ('Times', page.table(self._times(rows))),
            ('Made with', page.table([*made_with(), ('device', _device())])),
            ('Config', page.folded(page.code(runner.cfg.pretty_text), 'the complete config')),
        ]
        atomic_write(out / 'report.html', page.page(out.resolve().name, sections).encode())
        runner.logger.info(f'report: {out / "report.html"}')

    def _classes(self, runner: Runner) -> list[tuple[str, str]]:
        """Sections on the data, and on the validation of the best checkpoint, else on the last one."""
        tally = self.best or self.tally
        sections = []
        if tally is not None:
            meta = runner.val_loop.dataloader.dataset.metainfo
            classes, palette = meta['classes'], meta.get('palette')
            palette = None if isinstance(palette, str) else palette
            which = "the best checkpoint's" if self.best else 'the last'
            sections += [
                (f'Classes in {which} validation', class_table(tally, classes, _trained(runner))),
                ('Precision and recall over the score', score_figures(tally.counts, classes)),
                ('Confusion matrix', page.confusion(tally, classes)),
            ]
            sections += [
                (f'{name} images of {which} validation, truth left and prediction right', pictures)
                for name, pictures in (
                    ('Best', page.examples(tally.best, classes, palette)),
                    ('Worst', page.examples(tally.worst, classes, palette)),
                )
            ]
        if self._batch is not None:
            shown = page.wide(self._batch.read_bytes(), 'jpeg', 'augmented images with labels')
            sections.append(('The training data as the network sees them', shown))
        return sections

    def _times(self, rows: list[dict[str, float]]) -> list[tuple[str, str]]:
        found = [('this run', f'{(time.monotonic() - self._start) / 60:.1f} minutes')]
        steps = [row for row in rows if 'loss' in row]
        for key, name in (('time', 'a step'), ('data_time', 'of it waiting for data')):
            if values := [row[key] for row in steps if key in row]:
                found.append((name, f'{np.median(values):.3g} s (median)'))
        if values := [row['memory'] for row in steps if row.get('memory')]:
            found.append(('GPU memory', f'{max(values):.0f} MB'))
        return [*found, ('processes', str(get_world_size()))]


def _best_scores(runner: Runner) -> list[Any]:
    """The best metrics so far, of CheckpointHook."""
    known = runner.message_hub.runtime_info
    return [value for key, value in known.items() if key.startswith('best_score')]


def _trained(runner: Runner) -> tuple[Counter[str], Counter[str]] | None:
    """Images and boxes or pixels of each class in the training data, if CheckDataHook has counted them."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckDataHook)]
    reports = [report for hook in hooks for report in hook.checked.get('train', ())]
    if not reports or not all(report.images for report in reports):
        return None
    images, objects = Counter[str](), Counter[str]()
    for report in reports:
        images.update(report.images)
        objects.update(report.objects)
    return images, objects


def _model(runner: Runner) -> list[tuple[str, str]]:
    """The date, and what was trained."""
    config, values = runner.cfg.get('model') or {}, [*unwrapped(runner.model).parameters()]
    backbone = type_name(config.get('backbone') or {})
    count, trained = (
        sum(each.numel() for each in some) / 1e6
        for some in (values, [each for each in values if each.requires_grad])
    )
    return [
        ('date', time.strftime('%Y-%m-%d %H:%M')),
        ('config', str(getattr(runner.cfg, 'filename', None) or runner.experiment_name)),
        ('model', type_name(config) + f' on {backbone}' * bool(backbone)),
        (
            'parameters',
            f'{count:.2f} million' + f', {trained:.2f} million trained' * (trained < count),
        ),
    ]


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f'{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads'
