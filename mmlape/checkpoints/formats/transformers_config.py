"""What the ``config.json`` of a model of ``transformers`` says of a network, and its weights do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from mmlape.backbones import VisionTransformer, ViTAdapter
from mmlape.layers import Mlp
from mmlape.layers.basic import ACTIVATIONS, build_activation
from mmlape.position import RotaryPosition

from ..shards import file_in, read_json

_NAMES = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_new': 'gelu_tanh', 'swish': 'silu'}


def check_config(checkpoint: Path, model: nn.Module | None) -> None:
    """Compare heads, activation and rotary position of a network with the ``config.json`` beside its weights.

    What the file does not name, or is not there at all, is not compared.

    Args:
        checkpoint: The checkpoint: a file, an index or a folder.
        model: The backbone that it is for; None, or no ViT: not compared.

    Raises:
        ValueError: If the model has another.
    """
    path = file_in(checkpoint).with_name('config.json')
    vit = model.vit if isinstance(model, ViTAdapter) else model
    if not isinstance(vit, VisionTransformer) or not path.is_file():
        return
    config = read_json(path, 'config of a model')
    config = config.get('vision_config', config)
    if not isinstance(config, dict):
        return
    for option, (theirs, ours) in _compared(config, vit).items():
        if theirs is not None and theirs != ours:
            raise ValueError(f'{str(path)!r} says {option}={theirs}, the model has {ours}')


def _compared(config: dict[str, Any], vit: VisionTransformer) -> dict[str, tuple[Any, Any]]:
    """Options with their values there and here; None is not compared."""
    pairs = {'num_attention_heads': (config.get('num_attention_heads'), vit.arch['num_heads'])}
    act: Any = config.get('hidden_act')
    mlp = vit.blocks[0].mlp
    if isinstance(mlp, Mlp) and isinstance(act, str) and _NAMES.get(act, act) in ACTIVATIONS:
        act = _NAMES.get(act, act)
        own = (name for name in ACTIVATIONS if repr(build_activation(name)) == repr(mlp.act))
        pairs['hidden_act'] = act, next(own, repr(mlp.act))
    rotary = next((part for part in vit.modules() if isinstance(part, RotaryPosition)), None)
    if rotary is not None:
        pairs['rope_theta'] = config.get('rope_theta'), rotary.temperature
    return pairs
