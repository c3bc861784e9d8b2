"""Where the class token looks: its attention weights per head, as maps (DINO, ICCV 2021, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage, find_stages
from mmlape.checks import check_layers, check_positive_int
from mmlape.layers import Attention, SpatialReductionAttention, WideValueAttention
from mmlape.layout import Layout

from .listening import Call, listen

_LAYERS = (Attention, SpatialReductionAttention, WideValueAttention)


@dataclass(frozen=True)
class ClassAttention(Result):
    """The attention weights of a prefix token, of one image.

    Attributes:
        stage: Name of the stage.
        layers: ``(L,)``, 0-based indices.
        maps: ``(L, heads, H, W)``, the weights of patches; with those of prefix tokens they sum to 1.
        prefix: ``(L, heads, P)``, the weights of prefix tokens.
        image: ``(height, width)``, the mean of its channels, as the network got it.
    """

    stage: str
    layers: np.ndarray
    maps: np.ndarray
    prefix: np.ndarray
    image: np.ndarray


def class_attention(
    backbone: nn.Module,
    image: Tensor,
    part: str | None = None,
    layers: int | Sequence[int] | None = None,
    token: int = 0,
) -> ClassAttention:
    """How much the class token takes from each patch, by the very queries, keys and scores that a layer computes.

    Args:
        backbone: In evaluation mode, with a class token or other prefix tokens.
        image: ``(1, 3, height, width)``, see :func:`~mmlape.analysis.read_images`.
        part: Name of the layers, e.g. ``'vit.blocks'``. Default None: those of the only stage with prefix tokens.
        layers: 0-based. Default None: the last one.
        token: Which prefix token: class, distillation and register tokens, those that there are, in this order. Default
            0, the class token where there is one.

    Raises:
        ValueError: If there are no prefix tokens, no such layer or token, a layer that they join later, or one in which
            they do not look at all patches (spatial reduction, chosen keys).
    """
    stage = _stage_with_prefix(backbone, part)
    depth = len(stage.blocks)
    chosen = check_layers('layers', [depth - 1] if layers is None else layers, depth)
    check_positive_int('token', token, minimum=0, maximum=stage.num_prefix - 1)
    if chosen[0] < stage.prefix_after:
        raise ValueError(
            f'layers must be {stage.prefix_after} to {depth - 1}, where prefix tokens have joined '
            f'{stage.name!r}, got {chosen[0]}'
        )
    attentions = {_attention_of(stage, layer): layer for layer in chosen}
    found: dict[int, tuple[Layout, Tensor]] = {}

    def take(attention: nn.Module, layout: Layout, call: Call) -> None:
        # With windows the call of prefix tokens to all follows that of the windows: the last one counts.
        row = slice(token, token + 1)
        bias = None if call.bias is None else call.bias[..., row, :]
        scores = call._replace(query=call.query[..., row, :], bias=bias).scores()
        found[attentions[attention]] = layout, scores[0].softmax(-1).squeeze(-2).cpu()

    listen(backbone, image, attentions, take)
    for layer, (layout, weights) in found.items():
        if weights.shape[-1] != layout.num_tokens:
            raise ValueError(
                f'layer {layer} of {stage.name!r} has {weights.shape[-1]} keys for '
                f'{layout.num_tokens} tokens: a map needs a key of each patch (no spatial reduction)'
            )
    layout = found[chosen[0]][0]
    weights = torch.stack([found[layer][1] for layer in chosen])
    return ClassAttention(
        stage.name,
        np.asarray(chosen),
        weights[..., layout.num_prefix :].unflatten(-1, layout.grid).numpy(),
        weights[..., : layout.num_prefix].numpy(),
        image[0].mean(0).cpu().numpy(),
    )


def _stage_with_prefix(backbone: nn.Module, part: str | None) -> Stage:
    stages = [stage for stage in find_stages(backbone, part) if stage.prefix]
    if not stages:
        where = '' if part is None else f' in {part!r}'
        raise ValueError(
            f'{type(backbone).__name__} has no class token{where}: e.g. mmlape.VisionTransformer has '
            "one with with_cls_token=True and out_type='cls_token'"
        )
    return stages[-1]


def _attention_of(stage: Stage, layer: int) -> nn.Module:
    attention = stage.blocks[layer].get_submodule('attn')
    if not isinstance(attention, _LAYERS):
        raise ValueError(
            f'the attention of a class token is defined for {[cls.__name__ for cls in _LAYERS]}, '
            f'got {type(attention).__name__}'
        )
    return attention
