"""Weights of a timm model by its name, and what its state dict does not tell."""

from __future__ import annotations

import timm
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import Block
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import nn

from mmlape.backbones import ViTAdapter

from .base import State

# What differs between models of these shows in the shapes of their weights.
_SHOWN = (PyramidVisionTransformerV2, SwinTransformer)
_ELSEWHERE = ('hf-hub:', 'hf_hub:', 'local-dir:', 'timm/')


def check_timm_name(name: str) -> str:
    """Return the name if timm knows such a model and has weights of it (those of other places are looked up later).

    Raises:
        ValueError: If it has not.
    """
    if name.startswith(_ELSEWHERE):
        return name
    if not timm.is_model(name):
        raise ValueError(f'timm {timm.__version__} has no model {name!r}, see timm.list_models()')
    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # of that tag
        raise ValueError(f'timm {timm.__version__}: {error} See timm.list_pretrained()') from error
    if found is None or not found.has_weights:
        raise ValueError(f'timm {timm.__version__} has no weights of {name!r}')
    return name


def read_timm(name: str, model: nn.Module | None) -> State:
    """State dict of a timm model with its published weights, downloaded where they are not cached.

    Args:
        name: timm's name.
        model: The backbone that it is for; None: not compared.

    Raises:
        ValueError: If its layers compute something else than ours, or with another number of heads.
        ConnectionError: If the weights can be neither downloaded nor found.
    """
    try:
        source = timm.create_model(name, pretrained=True)
    except OSError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConnectionError(
            f'the weights of the timm model {name!r} cannot be had: {reason}\nWithout a network, '
            'copy its model.safetensors here and name that file as checkpoint'
        ) from error
    if not isinstance(source, _SHOWN):
        check_timm_layers(name, source, model.vit if isinstance(model, ViTAdapter) else model)
    return source.state_dict()


def check_timm_layers(name: str, source: nn.Module, model: nn.Module | None) -> None:
    """Compare what is not in a state dict.

    Raises:
        ValueError: If the timm model is no plain ViT, or its layers compute something else than those of ``model``.
    """
    if not isinstance(source, TimmViT):
        raise ValueError(
            f'{name!r} is a {type(source).__name__} of timm; only its VisionTransformer, PVTv2 '
            'and SwinTransformer are such as our backbones'
        )
    block = source.blocks[0]
    if type(block) is not Block:
        raise ValueError(
            f'the layers of {name!r} are of the kind {type(block).__name__}, not Block'
        )
    activation = block.mlp.act
    if type(activation).__name__ != 'GELU' or getattr(activation, 'approximate', 'none') != 'none':
        raise ValueError(
            f'{name!r} has the activation {activation}, our layers have the exact GELU'
        )
    heads = getattr(model, 'arch', {}).get('num_heads', block.attn.num_heads)
    if heads != block.attn.num_heads:
        raise ValueError(f'{name!r} has {block.attn.num_heads} heads, the model has {heads}')
