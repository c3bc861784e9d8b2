"""Checkpoint files on disk, read without running anything that is in them."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, with ``weights_only=True``.

    Besides tensors it may hold the training history that MMEngine puts into its checkpoints.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint, is damaged, or holds objects of other kinds.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'there is no checkpoint {str(path)!r}')
    try:
        with _mmengine_history():
            checkpoint = torch.load(path, map_location='cpu', weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'{str(path)!r} cannot be read as a checkpoint: {reason}') from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f'{str(path)!r} holds a {type(checkpoint).__name__}, not a state dict')
    return checkpoint


def _mmengine_history() -> contextlib.AbstractContextManager:
    safe_globals = getattr(torch.serialization, 'safe_globals', None)
    if safe_globals is None:  # torch 2.4
        return contextlib.nullcontext()
    core = getattr(np, '_core', None) or np.core
    dtypes = {type(np.dtype(kind)) for kind in ('float32', 'float64', 'int32', 'int64', 'uint32')}
    arrays = [np.ndarray, np.dtype, core.multiarray._reconstruct, core.multiarray.scalar]
    return safe_globals([HistoryBuffer, *arrays, *dtypes])
