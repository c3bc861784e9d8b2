"""Which checkpoint a training resumes from, also if the last one is incomplete."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmlape.atomic import digest_of
from mmlape.checkpoints.files import fault_of
from mmlape.checkpoints.reading import read_checkpoint
from mmlape.training.check_data import main_process_says
from mmlape.training.stop_hooks import all_finite

from .options import existing_checkpoint
from .processes import all_see

# Set by SLURM when it restarts a job, and by torchrun when it restarts the processes.
RESTARTS = ('SLURM_RESTART_COUNT', 'TORCHELASTIC_RESTART_COUNT')
_HOOK = 'mmlape.ResumeCheckHook'
_LONG = ('Config:\n', 'paramwise_options -- ')


def set_resume(cfg: Config, wanted: str | None) -> list[str]:
    """Write into ``cfg`` what a run starts from (``resume``, ``load_from``), and add ``mmlape.ResumeCheckHook``.

    The main process decides for all. A run that SLURM or torchrun has restarted resumes by itself.

    Args:
        cfg: The config, changed in place.
        wanted: ``None``; a checkpoint; or ``'auto'`` for the last complete checkpoint in ``cfg.work_dir``, and a new
            start if there is none (``cfg.load_from`` is not changed then).

    Returns:
        Messages for the user.

    Raises:
        ValueError: If the checkpoint does not exist, is incomplete, or some process cannot see it.
    """
    hooks = cfg.get('custom_hooks') or []
    if not any(isinstance(hook, dict) and hook.get('type') == _HOOK for hook in hooks):
        cfg.custom_hooks = [*hooks, dict(type=_HOOK)]
    notes = []
    if wanted is None and cfg.get('resume', False):
        wanted = cfg.get('load_from') or 'auto'
    restarts = [os.environ.get(name, '0') for name in RESTARTS]
    restarted = any(count.isdigit() and int(count) for count in restarts)
    if restarted and main_process_says(lambda: not wanted or _pointer(cfg.work_dir).is_file()):
        # Also if the job names a checkpoint: the last one is ahead of that.
        notes.append('restarted by the cluster: resuming from the last checkpoint')
        wanted = 'auto'
    if wanted is None:
        if cfg.get('load_from'):
            main_process_says(lambda: existing_checkpoint(cfg.load_from))
        return notes
    if wanted == 'auto':
        checkpoint, found = main_process_says(lambda: last_complete_checkpoint(cfg.work_dir))
        notes += found
    else:
        checkpoint = main_process_says(lambda: _complete(wanted))
    cfg.resume = checkpoint is not None
    if checkpoint is None:
        return [*notes, f'no checkpoint in {cfg.work_dir}: starting from the beginning']
    is_there = '://' in checkpoint or os.path.exists(checkpoint)
    all_see(is_there, f'{checkpoint} is not visible there; all nodes must share the work dir')
    cfg.load_from = checkpoint
    return [*notes, f'resuming from {checkpoint}']


def build_runner(cfg: Config, first_weights: str | None) -> Runner:
    """The runner of a config that :func:`set_resume` has changed.

    Its own config, also in the work dir and in checkpoints, is that of a first start with ``load_from=first_weights``,
    so a training from this file into another folder is a new one. ``cfg`` is changed in place.
    """
    resume, load_from = cfg.get('resume', False), cfg.get('load_from')
    if resume:
        cfg.resume, cfg.load_from = False, first_weights
    runner = make_runner(cfg)
    # The runner has copied them from the config; it uses these when training starts.
    runner._resume, runner._load_from = resume, load_from
    return runner


def make_runner(cfg: Config) -> Runner:
    """The runner of a config, with a shorter screen: what MMEngine prints of the config and of each parameter's
    settings, hundreds of lines, goes only to the log file."""
    kind: Any = RUNNERS.get(cfg.get('runner_type', 'Runner'))

    class ShortScreen(kind):
        def build_logger(self, *args: Any, **options: Any) -> logging.Logger:
            logger = super().build_logger(*args, **options)
            for handler in logger.handlers:
                if not isinstance(handler, logging.FileHandler):
                    handler.addFilter(lambda record: not str(record.msg).startswith(_LONG))
            return logger

    ShortScreen.__name__ = kind.__name__
    return ShortScreen.from_cfg(cfg)


def last_complete_checkpoint(work_dir: str) -> tuple[str | None, list[str]]:
    """The last readable checkpoint of a training, and what is wrong with later ones.

    MMEngine's own hook writes checkpoints in place, so a killed job leaves a part of one. Files with a digest
    (``mmlape.CheckpointHook``) are compared with it.
    """
    notes: list[str] = []
    pointer = _pointer(work_dir)
    named = pointer.read_text(encoding='utf-8').strip() if pointer.is_file() else ''
    if '://' in named:
        return named, notes
    first = [Path(named)] if named else []
    folders = {Path(work_dir), *(path.parent for path in first)}
    found = {path for folder in folders for path in folder.glob('*.pth')}.difference(first)
    steps = {path: step for path in found if (step := _step(path)) is not None}
    last = _step(first[0]) if first else None
    others = sorted(steps, key=steps.__getitem__, reverse=True)
    for path in (*first, *(each for each in others if last is None or steps[each] <= last)):
        fault = _fault(path) or _not_finite(path)
        if fault is None:
            return str(path), notes
        notes.append(f'{path} {fault}: falling back to the checkpoint before it')
    return None, notes


def _pointer(work_dir: str) -> Path:
    """The file in which MMEngine names the last checkpoint."""
    return Path(work_dir, 'last_checkpoint')


def _complete(text: str) -> str:
    existing_checkpoint(text)
    fault = None if '://' in text else _fault(Path(text))
    if fault:
        raise ValueError(
            f'the checkpoint {text} {fault}; --resume alone uses the last complete one'
        )
    return text


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint file; None for nothing."""
    if path.is_dir() and any(path.iterdir()):
        return None  # sharded
    if not path.is_file():
        return 'does not exist'
    return fault_of(path)


def _not_finite(path: Path) -> str | None:
    """What MMEngine's own hook saves when a training has diverged; ours saves no such file."""
    if path.is_dir() or digest_of(path).is_file():
        return None
    return None if all_finite(read_checkpoint(path)) else 'holds NaN or infinite values'


def _step(path: Path) -> int | None:
    """The number in ``epoch_12.pth`` or ``iter_8000.pth``; None for others, such as ``best_*``."""
    match = re.fullmatch(r'(?:epoch|iter)_(\d+)', path.stem)
    return int(match[1]) if match else None
