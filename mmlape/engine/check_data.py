"""Stop before training starts when the data are not what the config says."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import DATASETS
from mmengine.runner import BaseLoop, Runner

from mmlape.registry import HOOKS, RUNNERS

from .check_coco import check_coco
from .check_config import check_config, leaf_datasets
from .check_label_maps import check_label_maps
from .findings import Findings

__all__ = ['CheckDataHook', 'EarlyHookRunner']

_SPLITS = ('train', 'val', 'test')


@HOOKS.register_module()
class CheckDataHook(Hook):
    """Check the data sets of a run before it starts; all findings come in one error.

    It looks for missing folders and files, annotation files that are empty or not COCO, class
    names that are not categories of the annotation file or are in another order, images without a
    label map, files that cannot be decoded, label values without a class, and boxes beyond their
    image. What MMDetection or MMSegmentation leaves out in silence (images without a box, boxes
    outside the image, ...) is counted in the log with the reason.

    The data sets of MMDetection in COCO format (``CocoDataset``) and of MMSegmentation
    (``BaseSegDataset`` and what inherits its file layout) are checked; for others a line in the log
    says that nothing was. Process 0 does the work; an error is raised in all processes.

    In any config::

        custom_hooks = [dict(type='mmlape.CheckDataHook')]
        runner_type = 'mmlape.EarlyHookRunner'  # check before upstream reads the data

    Args:
        max_decode (int | None): How many images (and label maps) of each data set are decoded,
            spread over all of it; ``None`` for all, 0 for none. Defaults to 1000 (some seconds).

    Raises:
        ValueError: From the runner's ``train``, ``val`` or ``test``, when there is a problem.
    """

    priority = 'VERY_HIGH'

    def __init__(self, max_decode: int | None = 1000) -> None:
        if max_decode is not None and (not isinstance(max_decode, int) or max_decode < 0):
            raise ValueError(f'max_decode must be None or an integer >= 0, got {max_decode!r}')
        self.max_decode = max_decode
        self._checked: set[str] = set()

    def before_build(self, runner: Runner, splits: Sequence[str]) -> None:
        """Check the named data sets (stage of :class:`EarlyHookRunner`)."""
        self._check(runner, splits)

    def before_run(self, runner: Runner) -> None:
        """Check the data sets of the loops that are about to run, unless that was done already."""
        built = [name for name in _SPLITS if isinstance(getattr(runner, f'_{name}_loop'), BaseLoop)]
        self._check(runner, built)

    def _check(self, runner: Runner, splits: Sequence[str]) -> None:
        splits = [name for name in splits if name not in self._checked]
        self._checked.update(splits)
        message, cause = None, None
        if is_main_process():
            try:
                message = self._problems(runner, splits)
            except Exception as error:  # the other processes wait for the broadcast below
                message, cause = f'the check of the data failed: {error!r}', error
        outcome = [message]
        broadcast_object_list(outcome)
        if outcome[0]:
            raise ValueError(outcome[0]) from cause

    def _problems(self, runner: Runner, splits: Sequence[str]) -> str | None:
        """Log the notes on all data sets of these splits and return the problems as one text."""
        reports = []
        for name in splits:
            loader = runner.cfg.get(f'{name}_dataloader')
            if not loader:
                continue
            for config in leaf_datasets(loader['dataset']):
                started = time.perf_counter()
                findings = self._examine(name, config, runner.cfg)
                seconds = time.perf_counter() - started
                runner.logger.info(
                    findings.report([*findings.notes, f'checked in {seconds:.1f} s'])
                )
                if findings.problems:
                    reports.append(findings.report(findings.problems))
        if not reports:
            return None
        return '\n'.join(['the data do not fit the config:', *reports])

    def _examine(self, split: str, config: Mapping[str, Any], cfg: dict) -> Findings:
        with DATASETS.switch_scope_and_registry(config.get('_scope_')) as registry:
            name = config['type']
            cls = registry.get(name) if isinstance(name, str) else name
        findings = Findings(
            f'{split} data ({cls.__name__}, {config.get("data_root") or "no data_root"})'
        )
        kind = _kind(cls)
        if kind is None:
            findings.note('not checked: neither a CocoDataset nor a BaseSegDataset')
            return findings
        dataset = DATASETS.build({**config, 'lazy_init': True, 'pipeline': []})
        if kind == 'coco':
            with_mask = _loads_masks(config.get('pipeline', []))
            check_coco(dataset, findings, with_mask=with_mask, max_decode=self.max_decode)
        else:
            check_label_maps(dataset, findings, max_decode=self.max_decode)
            _check_heads(cfg.get('model') or {}, len(dataset.metainfo['classes']), findings)
        return findings


@RUNNERS.register_module()
class EarlyHookRunner(Runner):
    """MMEngine's runner with one more hook stage, before the data sets are built.

    The stage is ``before_build(runner, splits)``. MMEngine builds the data sets before it calls the
    first stage of its hooks, so an annotation file without images, for example, ends in a numpy
    error that no hook can prevent. ``runner_type = 'mmlape.EarlyHookRunner'`` in a config makes the
    tools of MMDetection and MMSegmentation use this runner.
    """

    def train(self):
        """Check the numbers of the config, call ``before_build`` for the training and validation data, then train."""
        check_config(self.cfg)
        self.call_hook('before_build', splits=('train', 'val'))
        return super().train()

    def val(self):
        """Call ``before_build`` for the validation data, then validate."""
        self.call_hook('before_build', splits=('val',))
        return super().val()

    def test(self):
        """Call ``before_build`` for the test data, then test."""
        self.call_hook('before_build', splits=('test',))
        return super().test()


def _kind(cls: Any) -> str | None:
    """Which check knows the file layout of a class; upstream is not imported for this."""
    for module, name, kind in (
        ('mmdet.datasets', 'CocoDataset', 'coco'),
        ('mmseg.datasets', 'BaseSegDataset', 'label maps'),
    ):
        base = getattr(sys.modules.get(module), name, None)
        if base is None or not issubclass(cls, base) or not issubclass(cls, BaseDataset):
            continue
        if cls.load_data_list is base.load_data_list:
            return kind
    return None


def _loads_masks(pipeline: Sequence[dict]) -> bool:
    return any(step.get('with_mask', False) for step in pipeline if isinstance(step, dict))


def _check_heads(model: dict, num_classes: int, findings: Findings) -> None:
    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name) or []
        for head in heads if isinstance(heads, (list, tuple)) else [heads]:
            if head.get('num_classes', num_classes) != num_classes:
                findings.problem(
                    f'model.{name}.num_classes is {head["num_classes"]}, but there are '
                    f'{num_classes} class names'
                )
