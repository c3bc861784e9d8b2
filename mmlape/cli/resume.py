"""Which checkpoint a training goes on from, also when the last one was not written to its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmlape.checkpoints.files import fault_of, format_of, start_of
from mmlape.training.check_data import main_process_says

from .options import existing_checkpoint
from .processes import all_see

# Set by SLURM when it starts a job again, and by torchrun when it starts the processes again.
RESTARTS = ('SLURM_RESTART_COUNT', 'TORCHELASTIC_RESTART_COUNT')
_HOOK = 'mmlape.ResumeCheckHook'


def set_resume(cfg: Config, wanted: str | None) -> list[str]:
    """Decide what a run starts from and write it into ``cfg`` (``resume``, ``load_from``).

    The main process decides and the others are told, so all start from the same. A run that SLURM or torchrun has
    started again goes on by itself.

    Args:
        cfg: The config, changed in place; ``mmlape.ResumeCheckHook`` is added to its hooks.
        wanted: ``None``; ``'auto'`` for the last complete checkpoint in ``cfg.work_dir``, and a new start where there
            is none (``cfg.load_from`` then stays what it is); or a checkpoint.

    Returns:
        What the user should be told.

    Raises:
        ValueError: If a checkpoint is asked for that is not there or not complete, or that some process cannot see.
    """
    hooks = cfg.get('custom_hooks') or []
    if not any(isinstance(hook, dict) and hook.get('type') == _HOOK for hook in hooks):
        cfg.custom_hooks = [*hooks, dict(type=_HOOK)]
    notes = []
    if wanted is None and cfg.get(
        'resume', False
    ):  # what the config itself says, in MMEngine's words
        wanted = cfg.get('load_from') or 'auto'
    if _restarted() and main_process_says(lambda: not wanted or _pointer(cfg.work_dir).is_file()):
        # Also where the job names a checkpoint: by now it is ahead of that.
        notes.append('started again by the cluster: resuming from the last checkpoint')
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

    The config that it keeps, writes into the work dir and into checkpoints is that of a first start, so a training from
    this file into another folder is a new one.

    Args:
        cfg: ``resume`` and ``load_from`` are changed in place to those of a first start.
        first_weights: ``load_from`` of a first start, or ``None``.
    """
    resume, load_from = cfg.get('resume', False), cfg.get('load_from')
    if resume:
        cfg.resume, cfg.load_from = False, first_weights
    runner = RUNNERS.build(cfg)
    # What the runner has read from the config, and looks at when training starts.
    runner._resume, runner._load_from = resume, load_from
    return runner


def last_complete_checkpoint(work_dir: str) -> tuple[str | None, list[str]]:
    """The last checkpoint of a training that can be read, and what was wrong with later ones.

    MMEngine's own hook writes checkpoints in place and names the last in ``last_checkpoint``; a job that is killed
    meanwhile leaves a part of one. Where ``mmlape.CheckpointHook`` has left a digest, the file is compared with it.
    """
    notes: list[str] = []
    candidates: list[Path] = []
    pointer = _pointer(work_dir)
    named = pointer.read_text(encoding='utf-8').strip() if pointer.is_file() else ''
    if '://' in named:
        return named, notes
    if named:
        candidates.append(Path(named))
    folders = {Path(work_dir), *(path.parent for path in candidates)}
    found = {path for folder in folders for path in folder.glob('*.pth')}.difference(candidates)
    steps = {path: step for path in found if (step := _step(path)) is not None}
    last = _step(candidates[0]) if named else None
    if last is not None:
        steps = {path: step for path, step in steps.items() if step <= last}
    others = sorted(steps, key=steps.__getitem__, reverse=True)
    for path in (*candidates, *others):
        fault = _fault(path)
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
            f'the checkpoint {text} {fault}; --resume alone takes the last complete one'
        )
    return text


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint, read through once; None for nothing."""
    if path.is_dir() and any(path.iterdir()):
        return None  # sharded
    if not path.is_file():
        return 'does not exist'
    start = start_of(path)
    if format_of(start) is None:
        return f'is not complete ({path.stat().st_size} bytes, no format of torch)'
    return fault_of(path)


def _step(path: Path) -> int | None:
    """``epoch_12.pth`` and ``iter_8000.pth`` to their numbers; None for others, such as the best one so far."""
    match = re.fullmatch(r'(?:epoch|iter)_(\d+)', path.stem)
    return int(match[1]) if match else None


def _restarted() -> bool:
    counts = [os.environ.get(name, '0') for name in RESTARTS]
    return any(count.isdigit() and int(count) for count in counts)
