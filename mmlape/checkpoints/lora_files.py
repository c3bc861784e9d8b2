"""LoRA adapters in a folder, in the format of peft."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmlape.atomic import atomic_write
from mmlape.layers.lora import LoRALinear

from .files import write_checkpoint
from .matching import other_shape
from .reading import read_checkpoint
from .report import CheckpointError, listed

WEIGHTS, CONFIG = 'adapter_model.safetensors', 'adapter_config.json'
_START = 'base_model.model.'
_CHANGE = '.lora_'
# Options of peft that change what the tensors mean.
_PLAIN = dict(
    peft_type='LORA', bias='none', fan_in_fan_out=False, lora_bias=False, layer_replication=None
)


# Initial values of peft with which a layer is the base's at first.
_KEEPS_THE_BASE = (True, False, 'gaussian', 'orthogonal', 'eva')


def save_lora(model: nn.Module, folder: str | Path, overwrite: bool = False) -> None:
    """Write what LoRA has learned to ``adapter_model.safetensors`` and ``adapter_config.json``, as peft does.

    Other trained parameters are written too (``lora=dict(train=...)``), with the running statistics of their norms.
    peft reads the folder for the same network without LoRA; names are those within ``model``, so give the network
    alone (``model.backbone`` or ``model.backbone.vit``), not the detector around it.

    Args:
        model: A network with LoRA.
        folder: Is made.
        overwrite: Replace existing files. Default False.

    Raises:
        ValueError: If the model has no LoRA, or the files exist.
    """
    layers = {path: part for path, part in model.named_modules() if isinstance(part, LoRALinear)}
    if not layers:
        raise ValueError(f'{type(model).__name__} has no LoRA: build it with lora=dict(rank=8)')
    parameters = dict(model.named_parameters())
    trained = {name for name, value in parameters.items() if value.requires_grad}
    # A norm that is trained has statistics which moved with it.
    owners = {name.rpartition('.')[0] for name in trained}
    statistics = {name for name in model.state_dict() if name.rpartition('.')[0] in owners}
    state = {
        f'{_START}{name}': value
        for name, value in parameters.items()
        if _CHANGE in name or name in trained
    } | {f'{_START}{name}': value for name, value in model.named_buffers() if name in statistics}
    first = next(iter(layers.values()))
    config = dict(
        _PLAIN,
        task_type=None,
        base_model_name_or_path=None,
        inference_mode=True,
        r=first.rank,
        lora_alpha=first.alpha,
        lora_dropout=getattr(first.lora_dropout, 'p', 0.0),
        use_dora=first.lora_magnitude_vector is not None,
        target_modules=list(layers),
        rank_pattern={p: part.rank for p, part in layers.items() if part.rank != first.rank},
        alpha_pattern={p: part.alpha for p, part in layers.items() if part.alpha != first.alpha},
    )
    write_checkpoint(Path(folder) / WEIGHTS, state, overwrite=overwrite)
    atomic_write(Path(folder) / CONFIG, json.dumps(config, indent=2).encode())


def load_lora(model: nn.Module, folder: str | Path) -> None:
    """Put what :func:`save_lora` or peft has written into a network.

    Linear layers that the files name become :class:`~mmlape.layers.LoRALinear`, unless they are so already. What is
    trained does not change: to go on with a training, build the network with ``lora`` first.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If the files are of another method than LoRA and DoRA, or do not fit the network.
    """
    config_file = Path(folder) / CONFIG
    config = json.loads(config_file.read_text())
    for option, plain in _PLAIN.items():
        if config.get(option, plain) != plain:
            raise CheckpointError(
                f'{config_file}: {option} must be {plain!r}, got {config[option]!r}'
            )
    start = config.get('init_lora_weights', True)
    if start not in _KEEPS_THE_BASE:
        raise CheckpointError(
            f'{config_file}: init_lora_weights={start!r} changes the weights of the base too: convert the adapter by '
            "peft's path_initial_model_for_weight_conversion"
        )
    others = [name for name in config if name.startswith('use_') and config[name]]
    if others := sorted({*others} - {'use_dora', 'use_rslora'}):
        raise CheckpointError(f'{config_file}: LoRA and DoRA are read, not {others[0]}')
    state = {
        name.removeprefix(_START): value
        for name, value in read_checkpoint(Path(folder) / WEIGHTS).items()
    }
    paths = list(dict.fromkeys(name.partition(_CHANGE)[0] for name in state if _CHANGE in name))
    own = {path for path, part in model.named_modules() if isinstance(part, LoRALinear)}
    if lacking := sorted(own - {*paths}):
        raise CheckpointError(f'{folder} has nothing for LoRA of {listed(lacking)}')
    for path in paths:
        _make_lora(model, path, config, state)
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in state.items():
        if name not in values:
            raise CheckpointError(f'{folder}: the {type(model).__name__} has no {name!r}')
        if value.shape != values[name].shape:
            raise CheckpointError(f'{name}: {other_shape(value.shape, values[name].shape)}')
    with torch.no_grad():
        for name, value in state.items():
            values[name].copy_(value)


def _make_lora(
    model: nn.Module, path: str, config: dict[str, Any], state: dict[str, Tensor]
) -> None:
    """Replace the linear layer at a path by one with a change of the rank and factor in the files."""
    try:
        layer = model.get_submodule(path)
    except AttributeError:
        layer = None
    if not isinstance(layer, nn.Linear):
        raise CheckpointError(f'the {type(model).__name__} has no linear layer {path!r}')
    for part in 'AB':
        if f'{path}{_CHANGE}{part}.weight' not in state:
            raise CheckpointError(f'the files have no {path}{_CHANGE}{part}.weight')
    if config.get('lora_alpha') is None:
        raise CheckpointError(f'{CONFIG} has no lora_alpha')
    rank = state[f'{path}{_CHANGE}A.weight'].shape[0]
    patterns = (config.get('alpha_pattern') or {}).items()
    own = (factor for end, factor in patterns if re.fullmatch(rf'(.*\.)?({end})', path))
    alpha = next(own, config['lora_alpha'])
    alpha *= rank**0.5 if config.get('use_rslora') else 1
    dora = f'{path}{_CHANGE}magnitude_vector' in state
    if isinstance(layer, LoRALinear):
        same = layer.rank, layer.alpha, layer.lora_magnitude_vector is not None
        if same != (rank, alpha, dora):
            raise CheckpointError(
                f'{path} has LoRA of (rank, alpha, dora) = {same}, in the files it is {(rank, alpha, dora)}'
            )
        return
    owner, _, name = path.rpartition('.')
    changed = LoRALinear(layer, rank, alpha, config.get('lora_dropout', 0.0), dora)
    for part, value in changed.named_parameters():
        if part.startswith('lora_'):
            value.requires_grad_(layer.weight.requires_grad)
    setattr(model.get_submodule(owner), name, changed.train(layer.training))
