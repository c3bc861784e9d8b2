"""Checkpoint files on disk, read without running anything that is in them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from mmlape.stack import numbers, parts_of_history


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, with ``weights_only=True``.

    Besides tensors it may hold the training history that MMEngine puts into its checkpoints (with torch >= 2.6).

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint, is damaged, or holds objects of other kinds.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'there is no checkpoint {str(path)!r}')
    try:
        with _with_history():
            checkpoint = torch.load(path, map_location='cpu', weights_only=True)
    except Exception as error:  # what is no checkpoint makes the unpickler stumble in any way
        raise ValueError(
            f'{str(path)!r} cannot be read as a checkpoint: {_reason(str(error))}'
        ) from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f'{str(path)!r} holds a {type(checkpoint).__name__}, not a state dict')
    return checkpoint


def _with_history() -> contextlib.AbstractContextManager:
    if numbers(torch.__version__) < (2, 6):
        return contextlib.nullcontext()
    # On leaving, torch forbids all that was named, also what was allowed before.
    allowed = torch.serialization.get_safe_globals()
    return torch.serialization.safe_globals([p for p in parts_of_history() if p not in allowed])


def _reason(message: str) -> str:
    """What torch found, without its advice to read the file unsafely."""
    marker = 'WeightsUnpickler error: '
    found = message.partition(marker)[2] or message
    lines = found.strip().split('. ')[0].splitlines()
    return lines[0] if lines else 'it is empty or cut off'
