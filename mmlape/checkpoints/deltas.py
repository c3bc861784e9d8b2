"""Share fine-tuned weights as differences to base weights that may not be redistributed (DINOv3's)."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import safe_open
from torch import Tensor, nn

from .formats import FORMATS
from .hub import HUB
from .pretrained import Pretrained
from .reading import DELTA
from .report import CheckpointError, listed


def values_of_base(
    model: nn.Module, base: str, folder: Path | None = None
) -> tuple[dict[str, Tensor], str]:
    """Return the values that the backbone of ``model`` takes of other weights, by the model's names; and the SHA-256 of
    those taken as they are (resizing may round differently elsewhere).

    Args:
        model: A detector or segmentor; it is not changed.
        base: ``SOURCE:PLACE``: a name of :data:`~mmlape.checkpoints.FORMATS`, and a timm model (of ``timm``), a file,
            an http(s) address or ``hf://OWNER/NAME``.
        folder: Where a file without a path is. Default the current one.

    Raises:
        ValueError: If the source is unknown, or the weights do not fit.
        FileNotFoundError, ConnectionError: If they cannot be had.
    """
    source, colon, place = base.partition(':')
    if source not in FORMATS or not (colon and place):
        raise ValueError(
            f'the base must be SOURCE:PLACE with a source of {", ".join(FORMATS)}, got {base!r}'
        )
    backbone: Any = copy.deepcopy(model.backbone)
    path = 'backbone.vit.' if hasattr(backbone, 'vit') else 'backbone.'
    target = getattr(backbone, 'vit', backbone)
    if is_file(base):
        pretrained = Pretrained(source, checkpoint=str(Path(folder or '.', place)))
    elif source == 'timm' and timm.is_model(place):
        pretrained = Pretrained(source, model=place)
    else:
        pretrained = Pretrained(source, checkpoint=place)
    report = pretrained.load(target, pretrained.read(target))
    state = {name: value.cpu() for name, value in target.state_dict().items()}
    # LoRA's initial values are not the base's.
    taken = [n for n in report.taken if state[n].is_floating_point() and '.lora_' not in n]
    digest = hashlib.sha256(''.join(taken).encode())
    for name in report.matched:
        digest.update(state[name].contiguous().view(-1).view(torch.uint8).numpy())
    return {path + name: state[name] for name in taken}, digest.hexdigest()


def is_file(base: str) -> bool:
    """Whether ``SOURCE:PLACE`` names a file."""
    source, _, place = base.partition(':')
    return not (
        place.startswith(('http://', 'https://', HUB))
        or (source == 'timm' and timm.is_model(place))
    )


def as_differences(state: dict[str, Tensor], base: dict[str, Tensor]) -> dict[str, Tensor]:
    """Subtract ``base`` from ``state`` where both have an entry (float32)."""
    return {
        name: value.float().cpu() - base[name] if name in base else value
        for name, value in state.items()
    }


def whole_state(path: Path, model: nn.Module, trust: bool = False) -> dict[str, Tensor]:
    """The weights in a file of differences, for ``model``, with its base added.

    Args:
        path: The file.
        model: What the weights are for.
        trust: The base may be anywhere. Default False: timm's, on the Hugging Face hub, or a file beside ``path``.

    Raises:
        CheckpointError: If the base has other values than when the file was written, or is elsewhere.
        ValueError, FileNotFoundError, ConnectionError: See :func:`values_of_base`.
    """
    with safe_open(path, framework='pt') as file:
        about = _about_base(path, file.metadata()[DELTA], trust)
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    base, digest = values_of_base(model, about['base'], path.parent)
    if digest != about['digest']:
        raise CheckpointError(
            f'{str(path)!r} holds differences to other values than those of {about["base"]} here'
        )
    wrong = [n for n, value in state.items() if n in base and value.shape != base[n].shape]
    if wrong:
        raise CheckpointError(f'{str(path)!r}: {listed(wrong)} have other shapes than in the base')
    return {name: value + base[name] if name in base else value for name, value in state.items()}


def _about_base(path: Path, text: str, trust: bool) -> dict[str, str]:
    """Read ``base`` and ``digest`` from the metadata of a file of differences."""
    try:
        about = json.loads(text)
        base, digest = about['base'], about['digest']
        place = base.partition(':')[2]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise CheckpointError(f'{str(path)!r} does not say which weights it differs from') from None
    # A stranger's file must not name files of this machine, or make it ask any host.
    elsewhere = (
        place != Path(place).name if is_file(base) else place.startswith(('http:', 'https:'))
    )
    if elsewhere and not trust:
        raise CheckpointError(
            f'{str(path)!r} holds differences to {base!r}: only timm models, hf://OWNER/NAME and files beside it are '
            'taken; if you trust its author, --trust (mmlape.load(..., trust=True)) takes any'
        )
    return dict(base=base, digest=digest)
