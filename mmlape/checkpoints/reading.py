"""Checkpoint files on disk and in the net, read without running anything that is in them."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from mmlape.stack import numbers, parts_of_history

SAFETENSORS = '.safetensors'


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU: ``.safetensors``, or what ``torch.save`` wrote, with ``weights_only=True``.

    Besides tensors it may hold the training history that MMEngine puts into its checkpoints, and the arguments that
    timm puts into its own (with torch >= 2.6).

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint, is damaged, or holds objects of other kinds.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'there is no checkpoint {str(path)!r}')
    if path.suffix == SAFETENSORS:
        return _read_safetensors(path)
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


def download_checkpoint(address: str) -> Path:
    """The file behind an http(s) address, kept in ``torch.hub``'s folder and downloaded where it is not there yet.

    Raises:
        ValueError: If the address names no file.
        ConnectionError: If it cannot be downloaded.
    """
    name = Path(urlparse(address).path).name
    if not name:
        raise ValueError(f'the address {address!r} names no file')
    path = Path(torch.hub.get_dir(), 'checkpoints', name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(address, str(path), progress=False)
        except OSError as error:
            raise ConnectionError(
                f'{address} cannot be downloaded: {error}\nWithout a network, copy the file to {path}'
            ) from error
    return path


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        return load_file(path, device='cpu')
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f'{str(path)!r} cannot be read as a checkpoint: {_reason(str(error))}'
        ) from error


def _with_history() -> contextlib.AbstractContextManager:
    if numbers(torch.__version__) < (2, 6):
        return contextlib.nullcontext()
    # On leaving, torch forbids all that was named, also what was allowed before.
    allowed = torch.serialization.get_safe_globals()
    # timm's checkpoints hold the arguments of their run as a Namespace, a plain record.
    parts = [*parts_of_history(), argparse.Namespace]
    return torch.serialization.safe_globals([part for part in parts if part not in allowed])


def _reason(message: str) -> str:
    """What torch found, without its advice to read the file unsafely."""
    marker = 'WeightsUnpickler error: '
    found = message.partition(marker)[2] or message
    lines = found.strip().split('. ')[0].splitlines()
    return lines[0] if lines else 'it is empty or cut off'
