"""Weights of a timm model by its name, and what its state dict does not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from timm.models.levit import Levit
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from mmlape.backbones import VisionTransformer, ViTAdapter
from mmlape.backbones.timm_archs import UnlikeOursError, describe
from mmlape.layers import Block, ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock
from mmlape.layers.basic import build_activation
from mmlape.registry import MODELS

from ..errors import DownloadError
from .base import State

_SECONDS = 10.0
# What differs between models of these shows in the shapes of their weights.
_OTHER_BLOCKS = (ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock)
_SHOWN = (Levit, PyramidVisionTransformerV2, SwinTransformer)
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
        DownloadError: A ``ConnectionError``, if the weights can be neither downloaded nor found.
    """
    try:
        _check_hub(name)
        source = timm.create_model(name, pretrained=True)
    except OSError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f'the weights of the timm model {name!r} cannot be had: {reason}. Without a network, '
            'copy its model.safetensors here and name that file as checkpoint'
        ) from None
    if not isinstance(source, _SHOWN):
        check_timm_layers(name, source, model.vit if isinstance(model, ViTAdapter) else model)
    return source.state_dict()


def _check_hub(name: str) -> None:
    """Ask the Hugging Face Hub once, where timm would take weights from there that are not in the cache.

    timm asks for file after file, and for each the hub's library tries again for 23 seconds.

    Raises:
        OSError: If there is no answer.
    """
    place = name.split(':', 1)[-1] if name.startswith(('hf-hub:', 'hf_hub:')) else None
    if place is None and timm.is_model(name):
        place = getattr(timm.get_pretrained_cfg(name), 'hf_hub_id', None)
    if not place or not isinstance(place, str):
        return
    repo, _, revision = place.partition('@')
    kept = Path(constants.HF_HUB_CACHE, f'models--{repo.replace("/", "--")}', 'snapshots')
    if any(kept.glob('*/*')):
        return
    address = hf_hub_url(repo, 'config.json', revision=revision or None)
    try:
        get_hf_file_metadata(address, timeout=_SECONDS)
    except HfHubHTTPError:
        return  # an answer, of which timm knows more
    except Exception as error:  # of the library underneath, which is another in other versions
        raise ConnectionError(f'{type(error).__name__} at {address}') from error


def check_timm_layers(name: str, source: nn.Module, model: nn.Module | None) -> None:
    """Compare what is not in a state dict: heads, activations, where norms stand, and turns by position.

    Raises:
        ValueError: If the timm model is no plain ViT, or its layers compute something else than those of ``model``.
    """
    try:
        theirs = describe(source)
    except UnlikeOursError as error:
        raise ValueError(f'{name!r} cannot be a backbone of ours: {error}') from error
    if not isinstance(model, VisionTransformer):
        return
    block: Any = model.blocks[0]
    kind, given = MODELS.get(theirs['block']['type']), theirs['num_heads']
    if not isinstance(block, kind) or (kind is Block and isinstance(block, _OTHER_BLOCKS)):
        layers = type(getattr(source, 'blocks')[0]).__name__  # noqa: B009
        raise ValueError(
            f'the layers of {name!r} are of the kind {layers}, ours of the kind {type(block).__name__}'
        )
    wanted, act = build_activation(theirs['mlp']['act']), getattr(block.mlp, 'act', None)
    if repr(wanted) != repr(act):
        raise ValueError(
            f'{name!r} has the activation {wanted}, the layers of the model have {act}'
        )
    heads = model.arch['num_heads']
    if heads != given:
        raise ValueError(f'{name!r} has {given} heads, the model has {heads}')
    inside = theirs['attention_position']
    if inside:
        sizes = dict(embed_dims=theirs['embed_dims'], num_heads=given, grid=model.grid)
        wanted = MODELS.build(dict(inside, **sizes))
        own = getattr(model, 'inside', None) or block.attn.position
        if repr(wanted) != repr(own):
            raise ValueError(
                f'{name!r} has {wanted} inside its attention, the model has {own}: '
                f"attention_position={inside}, or arch={name!r}"
            )
