"""Facts about a model, in a few words: for its card, and for the page of ``mmlape app``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .names import MODELS

if TYPE_CHECKING:
    from .model import Model


def about(model: Model) -> dict[str, str]:
    """Its network, classes and input, by the name of the fact."""
    config = model.cfg.model
    backbone = (config.get('backbone') or {}).get('type', 'its own backbone')
    count = sum(each.numel() for each in model.model.parameters())
    return {
        'network': f'{config.type} on {backbone}, {count / 1e6:.2f} M parameters',
        'classes': ', '.join(model.classes),
        'input': _input(model),
    }


def _input(model: Model) -> str:
    """Channels, and the size to which images are brought."""
    pipeline = model.cfg.test_dataloader.dataset.pipeline
    scales = [step.scale for step in pipeline if step.type == 'Resize' and step.get('scale')]
    channels = 3 if model.loader is None else model.loader.channels
    text = f'images of {channels} channels'
    if scales:
        width, height = scales[0] if isinstance(scales[0], (list, tuple)) else (scales[0],) * 2
        text += f', resized to fit {width} x {height} pixels; larger ones in parts, by --tile'
    return text


def facts_of(name: str) -> dict[str, Any]:
    """Facts about a model that comes with the package: ``data``, ``training``, ``limits``, ``license`` and
    ``metrics``; empty for others."""
    path = MODELS / f'{name}.json'
    known = path.stem == name and path.is_file()
    return json.loads(path.read_text(encoding='utf-8')) if known else {}
