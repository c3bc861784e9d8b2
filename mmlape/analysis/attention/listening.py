"""What attention layers hand to ``scaled_dot_product_attention``, while a network runs as it always does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmlape.layout import Layout


class Call(NamedTuple):
    """A call of ``scaled_dot_product_attention``.

    Attributes:
        query: ``(..., Q, D)``.
        key: ``(..., K, D)``.
        bias: Added to the scores, or a mask of what is attended to; or None.
        scale: Of the scores; None: ``1 / sqrt(D)``.
    """

    query: Tensor
    key: Tensor
    bias: Tensor | None = None
    scale: float | None = None

    def by_window(self, count: int) -> Call:
        """Windows that stand beside the heads ``(B, windows * heads, ...)`` as images ``(B * windows, heads, ...)``."""
        query, key = (x.unflatten(1, (count, -1)).flatten(0, 1) for x in (self.query, self.key))
        bias = self.bias
        bias = None if bias is None else bias.unflatten(1, (count, -1)).flatten(0, 1)
        return Call(query, key, bias, self.scale)

    def scores(self) -> Tensor:
        """What the softmax gets, ``(..., Q, K)`` float32."""
        scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = (self.query * scale @ self.key.mT).float()
        if self.bias is None:
            return scores
        if self.bias.dtype == torch.bool:
            return scores.masked_fill(~self.bias, -math.inf)
        return scores + self.bias


Heard = Callable[[nn.Module, Layout, Call], None]


def listen(
    backbone: nn.Module, image: Tensor, attentions: Iterable[nn.Module], heard: Heard
) -> None:
    """Run a network on an image without gradients.

    Args:
        backbone: In evaluation mode.
        image: ``(1, 3, height, width)``.
        attentions: Layers of it to listen to, called as ``attn(tokens, layout, ...)``.
        heard: Called with the layer, the layout of its tokens, and every call that it makes.
    """
    listener = _Listener(heard)
    handles = []
    for attention in attentions:
        handles.append(attention.register_forward_pre_hook(listener.enter))
        handles.append(attention.register_forward_hook(listener.leave))
    try:
        with torch.no_grad(), listener:
            backbone(image)
    finally:
        for handle in handles:
            handle.remove()


class _Listener(TorchFunctionMode):
    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self.heard = heard
        self.where: tuple[nn.Module, Layout] | None = None

    def enter(self, attention: nn.Module, args: tuple) -> None:
        self.where = attention, Layout.of(*args[:2])

    def leave(self, *_: object) -> None:
        self.where = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and self.where is not None:
            self.heard(*self.where, _call(*args, **kwargs))
        return func(*args, **kwargs)


def _call(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None) -> Call:
    return Call(query, key, attn_mask, scale)
