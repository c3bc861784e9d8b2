"""Checkpoints, read without running anything that is in them."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from safetensors import safe_open
from safetensors.torch import load_file

from mmlape.compatibility import weights_only_fault

from .contents import check_contents, config_text_of, make_configs_plain, parts_of_history
from .files import INDEX, SAFETENSORS, fault_of, file_in, parse_json, shards_of
from .report import CheckpointError, MissingCheckpointError, listed

TRUST = 'MMLAPE_TRUST_PICKLES'
DELTA = 'delta'  # a text in a .safetensors: which weights its values are differences to


def read_checkpoint(path: str | Path, map_location: Any = 'cpu') -> dict[str, Any]:
    """Read a checkpoint: ``.safetensors``, or what ``torch.save`` wrote, with ``weights_only=True``; or several such
    files by their ``.index.json``; or a folder with ``model.safetensors``, ``pytorch_model.bin`` or an index of either.

    Besides tensors it may hold the training history that MMEngine puts into its checkpoints, and the arguments that
    timm puts into its own. Texts of configs in it are data afterwards
    (:func:`~mmlape.checkpoints.strangers.config_of_stranger`), or are left out with a warning.
    The checksums in the file are compared, and the digest in ``<path>.sha256`` where there is one. With the environment
    variable ``MMLAPE_TRUST_PICKLES=1``, what ``weights_only`` refuses is unpickled whole, which may run code.

    Args:
        path: The file, a link to it, or the folder.
        map_location: As in ``torch.load``. Default the CPU.

    Raises:
        MissingCheckpointError: A ``FileNotFoundError``, if there is no such file, or one that the index names.
        CheckpointError: A ``ValueError``, if it is not a checkpoint, is damaged, or holds objects of other kinds; if
            the index names files elsewhere, or other entries than its files hold.
    """
    checkpoint = _read(path, map_location)
    _make_plain(checkpoint, path)
    return checkpoint


def read_with_texts(path: Path, map_location: Any = 'cpu') -> tuple[dict[str, Any], str | None]:
    """A checkpoint as MMEngine's loaders return it, and the text of the config in it as it is, None without one.

    The tensors of a ``.safetensors`` are ``state_dict``, its texts are ``meta``; ``dataset_meta`` is read as JSON.
    Raises as :func:`read_checkpoint`.
    """
    path = file_in(path.expanduser())
    checkpoint = _read(path, map_location)
    if path.suffix == SAFETENSORS:
        with safe_open(path, framework='pt') as file:
            texts = dict(file.metadata() or {})
        checkpoint = dict(meta=texts, state_dict=checkpoint)
        if 'dataset_meta' in texts:
            checkpoint['meta']['dataset_meta'] = names_in(path, texts['dataset_meta'])
    config = config_text_of(checkpoint)
    _make_plain(checkpoint, path)
    return checkpoint, config


def names_in(path: Path, text: str) -> dict[str, Any]:
    """The ``dataset_meta`` of a ``.safetensors``, a JSON object; CheckpointError if it is something else."""
    return parse_json(text, f'{str(path)!r}: its dataset_meta is not a JSON object')


def _make_plain(checkpoint: dict[str, Any], path: str | Path) -> None:
    for reason in make_configs_plain(checkpoint):
        print_log(f'{path}: the config in it is left out: {reason}', logger='current')


def _read(path: str | Path, map_location: Any) -> dict[str, Any]:
    """See :func:`read_checkpoint`; texts of configs are left as they are."""
    path = file_in(Path(path).expanduser())
    if path.is_symlink():
        print_log(f'{path} is a link to {path.resolve()}', logger='current')
    if path.name.endswith(INDEX):
        return _read_shards(path, map_location)
    return _read_one(path, map_location)


def _read_one(path: Path, map_location: Any) -> dict[str, Any]:
    if not path.is_file():
        raise MissingCheckpointError(f'there is no checkpoint {str(path)!r}')
    fault = fault_of(path)
    if fault:
        raise CheckpointError(f'{str(path)!r} cannot be read as a checkpoint: it {fault}')
    checkpoint = _read_file(path, map_location)
    if not isinstance(checkpoint, dict):
        raise CheckpointError(
            f'{str(path)!r} holds a {type(checkpoint).__name__}, not a state dict'
        )
    return checkpoint


def trusts_pickles() -> bool:
    """Whether the user allows pickles that run code (``MMLAPE_TRUST_PICKLES=1``)."""
    return os.environ.get(TRUST, '').lower() in ('1', 'true', 'yes')


@contextlib.contextmanager
def weights_only_everywhere() -> Iterator[None]:
    """Make every ``torch.load`` in the block read weights only, unless the user trusts pickles.

    For what does not go through MMEngine's loader: DeepSpeed's checkpoints, queues and code books of MMPretrain.
    """
    if trusts_pickles():
        yield
        return
    names = ('TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD')
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ[names[0]] = '1'
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _read_shards(index: Path, map_location: Any) -> dict[str, Any]:
    """All files of an index, each read as one that stands alone."""
    whole: dict[str, Any] = {}
    for path, entries in shards_of(index).items():
        shard = read_checkpoint(path, map_location)
        if shard.keys() != entries:
            other = sorted(shard.keys() ^ entries, key=str)
            raise CheckpointError(
                f'{str(path)!r} is not the file that {index.name} was made for: {listed(other)} in one alone'
            )
        whole.update(shard)
    return whole


def _read_file(path: Path, map_location: Any) -> Any:
    pickled = path.suffix != SAFETENSORS
    try:
        if pickled:
            _warn_of_this_torch()
            with _with_history():
                content = torch.load(path, map_location=map_location, weights_only=True)
        else:
            _refuse_differences(path)
            on_device = isinstance(map_location, (str, torch.device))
            content = load_file(path, device=str(map_location) if on_device else 'cpu')
        check_contents(content)
        return content
    except Exception as error:  # a file that is not a checkpoint makes readers stumble in any way
        if not (pickled and trusts_pickles()):
            hint = f'. Nothing was run; if you made it yourself, {TRUST}=1 reads such files'
            raise CheckpointError(
                f'{str(path)!r} cannot be read as a checkpoint: {_reason(str(error))}'
                + hint * pickled
            ) from error
    _warn(f'{path} holds more than data and is unpickled whole, since {TRUST} is set')
    return torch.load(path, map_location=map_location, weights_only=False)


def _refuse_differences(path: Path) -> None:
    with safe_open(path, framework='pt') as file:
        if (file.metadata() or {}).get(DELTA) is not None:
            raise ValueError(
                'it holds differences to other weights, which mmlape.load adds (and save_folder then writes whole)'
            )


def _with_history() -> contextlib.AbstractContextManager:
    # On leaving, torch forbids all that was named, also what was allowed before.
    allowed = torch.serialization.get_safe_globals()
    # timm's checkpoints hold the arguments of their run as a Namespace, a plain record.
    parts = [*parts_of_history(), argparse.Namespace]
    return torch.serialization.safe_globals([part for part in parts if part not in allowed])


def _reason(message: str) -> str:
    """Shorten torch's message to what it found, without its advice to read the file unsafely."""
    if wanted := re.search(r'GLOBAL (\S+)', message):
        return f'it holds {wanted[1]}, which is not data'
    lines = (message.partition('WeightsUnpickler error: ')[2] or message).strip().splitlines()
    return lines[0].split('. ')[0] if lines else 'it is cut off'


def _warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


@functools.cache
def _warn_of_this_torch() -> None:
    """Say once that this torch is one in which ``weights_only`` itself is broken."""
    fault = weights_only_fault(torch.__version__)
    if fault:
        _warn(
            f'torch {torch.__version__} reads no .pth of strangers safely: {fault}. Update torch, or take '
            '.safetensors'
        )
