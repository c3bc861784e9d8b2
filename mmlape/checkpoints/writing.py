"""Checkpoint files: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .integrity import DIGEST, write_digest
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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f'.{path.name}.', dir=path.parent)
    os.close(handle)
    try:
        if path.suffix == SAFETENSORS:
            strings = {name: text for name, text in meta.items() if isinstance(text, str)}
            save_file(tensors, draft, {'format': 'pt', **strings})
        else:
            torch.save(dict(meta=meta, state_dict=tensors), draft)
        # A draft is for its owner alone; a checkpoint is as readable as other files.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)
        path.with_name(path.name + DIGEST).unlink(missing_ok=True)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)
    write_digest(path)
    return path
