"""Safe loading: MMEngine's runners and upstream's tools read checkpoints without running code in them.

MMEngine's own loaders read with ``weights_only=False``, or fall back to it; their list of what is safe holds
``getattr``, which is enough to run code. Ours take what :func:`read_checkpoint` takes, from the same places.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from safetensors import safe_open

from .contents import allow_own_checkpoints, make_configs_plain
from .files import SAFETENSORS, download_checkpoint, file_in, main_process_first
from .hub import HUB, hub_folder
from .matching import problems_of
from .reading import read_checkpoint
from .report import CheckpointError, listed

_HTTP = ('http://', 'https://')


def safe_loading() -> None:
    """Make MMEngine read every checkpoint of this process by :func:`read_checkpoint`, which runs nothing in it.

    The config in a checkpoint, by which MMDetection's and MMSegmentation's inferencers build a model, keeps what
    predictions need, as far as it is in the lists of ``mmlape/checkpoints/strangers.py``; else it is left out.

    Our commands call it, and so does ``mmlape.SafeLoadingHook`` in our base configs before weights are loaded. In a
    script of your own, call it before the first checkpoint is read.
    """
    allow_own_checkpoints()
    for prefixes, loader in (
        # SenseTime's own services cannot be reached: their addresses are files that do not exist.
        (('', r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://'), load_from_local),
        (_HTTP, load_from_http),
        ((HUB,), load_from_hub),
        (('modelzoo://', 'torchvision://', 'open-mmlab://', 'openmmlab://', 'mmcls://'), load_from_zoo),
    ):  # fmt: skip
        CheckpointLoader.register_scheme(prefixes, loader, force=True)


def load_from_local(filename: str, map_location: Any = None) -> dict[str, Any]:
    """A file, or the one in a folder; the tensors of a ``.safetensors`` as ``state_dict``, its texts as ``meta``.

    A config among the texts is data afterwards, as :func:`read_checkpoint` makes it; ``dataset_meta`` is read as JSON.
    """
    path = file_in(Path(filename).expanduser())
    checkpoint = read_checkpoint(path, map_location)
    if path.suffix == SAFETENSORS:
        with safe_open(path, framework='pt') as file:
            meta: dict[str, Any] = dict(file.metadata() or {})
        checkpoint = dict(meta=meta, state_dict=checkpoint)
        for reason in make_configs_plain(checkpoint):
            print_log(f'{path}: the config in it is left out: {reason}', logger='current')
        if 'dataset_meta' in meta:
            meta['dataset_meta'] = _names_in(path, meta['dataset_meta'])
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict):
        raise CheckpointError(
            f'{filename}: its state_dict is a {type(weights).__name__}, not names with tensors'
        )
    problems = problems_of(weights, None)
    if problems:
        _warn(f'{filename}: {listed(problems)}')
    return checkpoint


def _names_in(path: Path, text: str) -> dict[str, Any]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f'{str(path)!r}: its dataset_meta is not JSON: {error}') from None
    if not isinstance(names, dict):
        raise CheckpointError(f'{str(path)!r}: its dataset_meta is not a JSON object')
    return names


def _warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


def load_from_http(filename: str, map_location: Any = None) -> dict[str, Any]:
    """A file behind an http(s) address, which the main process downloads first."""
    with main_process_first():
        path = download_checkpoint(filename)
    return load_from_local(str(path), map_location)


def load_from_hub(filename: str, map_location: Any = None) -> dict[str, Any]:
    """The weights of a model on the Hugging Face hub, ``hf://OWNER/NAME``."""
    with main_process_first():
        folder = hub_folder(filename)
    return load_from_local(str(folder), map_location)


def load_from_zoo(filename: str, map_location: Any = None) -> dict[str, Any]:
    """A model by its name in the lists that MMEngine has of torchvision's and OpenMMLab's."""
    place, _, name = filename.partition('://')
    if place in ('modelzoo', 'torchvision'):
        addresses = mmengine_checkpoint.get_torchvision_models()
    elif place == 'mmcls':
        addresses = mmengine_checkpoint.get_mmcls_models()
    else:
        addresses = mmengine_checkpoint.get_external_models()
        name = mmengine_checkpoint.get_deprecated_model_names().get(name, name)
    if name not in addresses:
        raise CheckpointError(f'{filename!r}: MMEngine knows no {name!r}')
    address = addresses[name]
    if address.startswith(_HTTP):
        found = load_from_http(address, map_location)
    else:
        home = mmengine_checkpoint._get_mmengine_home()
        found = load_from_local(os.path.join(home, address), map_location)
    if place == 'mmcls':  # as upstream: the backbone of a classifier, by the names in it
        start = 'backbone.'
        state = found.get('state_dict', found).items()
        return dict(state_dict={k.removeprefix(start): v for k, v in state if k.startswith(start)})
    return found
