"""One run of the experiment, by MMEngine's Runner."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

import mmlape  # noqa: F401  registers our types
from mmlape.research.demo.console import output_to

# Metrics of segmentors, by the name of MMEngine's metric.
SEGMENTATION = dict(mIoU='mIoU', mAcc='mAcc', aAcc='aAcc')
# Iterations between two reports.
REPORT_INTERVAL = 10


class ReportHook(Hook):
    """Reports the progress of the training and stores the validation metrics."""

    priority = 'LOWEST'

    def __init__(self, report: Callable[[float], None]) -> None:
        self.report = report
        self.metrics: dict[str, float] = {}

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if (runner.iter + 1) % REPORT_INTERVAL == 0:
            self.report((runner.iter + 1) / runner.max_iters)

    def after_val_epoch(self, runner, metrics=None) -> None:
        self.metrics = dict(metrics)


def train(
    cfg: Config,
    name: str,
    report: Callable[[float], None],
    metrics: dict[str, str] = SEGMENTATION,
) -> dict[str, Any]:
    """Train and validate; OpenMMLab's output goes to ``train.log`` in the config's ``work_dir``.

    Args:
        cfg: The config.
        name: The run's name, by which MMEngine caches loggers for the life of the process.
        report: Called with the finished part (0 to 1) of the training.
        metrics: The validation's metrics to keep, by the name to keep them under. Default those of segmentation.

    Returns:
        The metrics (0 to 1), parameters, seconds, and the device.
    """
    started = time.monotonic()
    with output_to(Path(cfg.work_dir) / 'train.log'):
        cfg.experiment_name = f'{name}-{os.getpid()}-{time.monotonic_ns()}'
        runner = Runner.from_cfg(cfg)
        hook = ReportHook(report)
        runner.register_hook(hook)
        runner.train()
    position = [
        parameter.numel()
        for key, parameter in runner.model.backbone.named_parameters()
        if re.search(r'(^|\.)position\d?\.', key)
    ]
    return {
        **{key: round(float(hook.metrics[name]) / 100, 4) for key, name in metrics.items()},
        'iterations': cfg.train_cfg.max_iters,
        'parameters': sum(p.numel() for p in runner.model.parameters()),
        'position_parameters': sum(position),
        'seconds': round(time.monotonic() - started, 1),
        'device': torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU',
    }
