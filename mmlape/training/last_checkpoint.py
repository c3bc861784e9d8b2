"""The checkpoint that a training resumes from: the last one in its work dir that is whole."""

from __future__ import annotations

import re
from pathlib import Path

from mmlape.atomic import digest_of
from mmlape.checkpoints.files import fault_of
from mmlape.checkpoints.reading import read_checkpoint
from mmlape.checks import existing_checkpoint

from .stop_hooks import all_finite


def last_complete_checkpoint(work_dir: str) -> tuple[str | None, list[str]]:
    """The last readable checkpoint of a training, and what is wrong with later ones.

    MMEngine's own hook writes checkpoints in place, so a killed job leaves a part of one. Files with a digest
    (``mmlape.CheckpointHook``) are compared with it.
    """
    notes: list[str] = []
    pointer = pointer_of(work_dir)
    named = pointer.read_text(encoding='utf-8').strip() if pointer.is_file() else ''
    if '://' in named:
        return named, notes
    here = Path(work_dir, Path(named).name)  # of a work dir that was moved or copied
    first = [here if here.is_file() else Path(named)] if named else []
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


def best_checkpoint(work_dir: Path) -> Path | None:
    """The newest ``best_*.pth``; None without one."""
    found = work_dir.glob('best_*.pth')
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def pointer_of(work_dir: str) -> Path:
    """The file in which MMEngine names the last checkpoint."""
    return Path(work_dir, 'last_checkpoint')


def complete_checkpoint(text: str) -> str:
    """Return ``text`` if it is an :func:`existing_checkpoint` without a fault, else raise ValueError."""
    existing_checkpoint(text)
    fault = None if '://' in text else _fault(Path(text))
    if fault:
        raise ValueError(
            f'the checkpoint {text} {fault}; --resume alone uses the last complete one'
        )
    return text


def _fault(path: Path) -> str | None:
    """Return what is wrong with a checkpoint file; None if nothing is."""
    if path.is_dir() and any(path.iterdir()):
        return None  # sharded
    if not path.is_file():
        return 'does not exist'
    return fault_of(path)


def _not_finite(path: Path) -> str | None:
    """Return the fault of a file with NaN or infinite values, which MMEngine's own hook saves, ours does not."""
    if path.is_dir() or digest_of(path).is_file():
        return None
    return None if all_finite(read_checkpoint(path)) else 'holds NaN or infinite values'


def _step(path: Path) -> int | None:
    """The number in ``epoch_12.pth`` or ``iter_8000.pth``; None for others, such as ``best_*``."""
    match = re.fullmatch(r'(?:epoch|iter)_(\d+)', path.stem)
    return int(match[1]) if match else None
