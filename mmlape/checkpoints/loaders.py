"""Safe loading: MMEngine's runners and upstream's tools read checkpoints without running code in them.

MMEngine's own loaders read with ``weights_only=False``, or fall back to it; their list of what is safe holds
``getattr``, which is enough to run code. Ours take what :func:`read_checkpoint` takes, from the same places.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint

from .contents import allow_own_checkpoints
from .files import download_checkpoint, main_process_first
from .hub import HUB, hub_folder
from .matching import problems_of
from .reading import read_with_texts
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
        # internal Petrel paths: treat as missing files
        (('', r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://'), load_from_local),
        (_HTTP, load_from_http),
        ((HUB,), load_from_hub),
        (('modelzoo://', 'torchvision://', 'open-mmlab://', 'openmmlab://', 'mmcls://'), load_from_zoo),
    ):  # fmt: skip
        CheckpointLoader.register_scheme(prefixes, loader, force=True)


def load_from_local(filename: str, map_location: Any = None) -> dict[str, Any]:
    """A file, or the one in a folder; see :func:`load_with_config`."""
    return load_with_config(filename, map_location)[0]


def load_with_config(
    filename: str | Path, map_location: Any = None
) -> tuple[dict[str, Any], str | None]:
    """The content of :func:`~mmlape.checkpoints.reading.read_with_texts`; NaN and infinite weights are warned of.

    Raises:
        CheckpointError: If it is not a checkpoint, or its ``state_dict`` is something else.
    """
    checkpoint, config = read_with_texts(Path(filename), map_location)
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict):
        raise CheckpointError(
            f'{filename}: its state_dict is a {type(weights).__name__}, not names with tensors'
        )
    problems = problems_of(weights, None)
    if problems:
        print_log(f'{filename}: {listed(problems)}', logger='current', level=logging.WARNING)
    return checkpoint, config


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
    if place == 'mmcls':  # like upstream: the backbone of a classifier, by the names in it
        start = 'backbone.'
        state = found.get('state_dict', found).items()
        return dict(state_dict={k.removeprefix(start): v for k, v in state if k.startswith(start)})
    return found
