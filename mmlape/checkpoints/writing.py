"""Checkpoint files: written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from mmlape.whole_files import write_whole

from .reading import SAFETENSORS

SUFFIXES = ('.pth', SAFETENSORS)


def check_target(path: str | Path, overwrite: bool = False) -> Path:
    """Return the path of a checkpoint to write.

    Raises:
        ValueError: If its suffix is neither ``.pth`` nor ``.safetensors``, or it exists and may not be overwritten.
    """
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f'a checkpoint to write ends in {" or ".join(SUFFIXES)}, got {str(path)!r}'
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise ValueError(f'{str(path)!r} exists already')
    return path


def write_checkpoint(
    path: str | Path,
    state: Mapping[str, Tensor],
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a state dict, first beside its place, then moved there: a file by that name is always whole.

    Its digest is written beside it, to ``<path>.sha256``.

    Args:
        path: ``.pth``: ``{'meta': ..., 'state_dict': ...}``, as MMEngine reads it; ``.safetensors``: the tensors, with
            those values of ``meta`` that are strings. Its folder is made.
        state: Names to tensors.
        meta: What is said of them. Default nothing.
        overwrite: Replace an existing file. Default False.

    Raises:
        ValueError: See :func:`check_target`.
    """
    path = check_target(path, overwrite)
    meta = dict(meta or {})
    # Copies: a view would be saved with all that it is a view of.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
    if path.suffix == SAFETENSORS:
        strings = {name: text for name, text in meta.items() if isinstance(text, str)}
        content = save(tensors, {'format': 'pt', **strings})
    else:
        buffer = io.BytesIO()
        torch.save(dict(meta=meta, state_dict=tensors), buffer)
        content = buffer.getvalue()
    write_whole(path, content, digest=True)
    return path
