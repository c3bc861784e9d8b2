"""Pooling of tokens to one vector: by sequence pooling, by attention, or by attention over layers' class tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import AttentionPoolLatent
from torch import Tensor, nn

from mmlape.checks import check_divisor, check_eps, check_number, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .attention import Attention
from .basic import build_activation, init_linear
from .block import Block
from .mlp import Mlp


@MODELS.register_module()
class SequencePooling(nn.Module):
    """A mean of the cells, weighted by a softmax of a learned score of each (Compact Transformers, arXiv 2021, section
    3.2). Prefix tokens and cells that a mask hides take no part.

    Args:
        embed_dims: Channels ``C``.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.score = nn.Linear(check_positive_int('embed_dims', embed_dims), 1)
        nn.init.trunc_normal_(self.score.weight, std=0.02)
        nn.init.zeros_(self.score.bias)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """``(B, P + H * W, C)`` to ``(B, C)``."""
        layout = Layout.of(tokens, layout)
        cells = layout.split(tokens)[1]
        scores = self.score(cells)
        if layout.mask is not None:
            # Not -inf: an image of padding alone would be NaN.
            hidden = ~layout.mask.unsqueeze(-1)
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return (scores.softmax(dim=1) * cells).sum(dim=1)


@MODELS.register_module()
class AttentionPooling(AttentionPoolLatent):
    """Attention pooling: one learned query reads the tokens, and a feed-forward network follows: timm's
    ``AttentionPoolLatent``, the head of SigLIP (ICCV 2023) and Perception Encoder (2025). Cells that a mask hides are
    not read.

    Parameters have timm's names, under ``pool`` of a backbone instead of ``attn_pool``.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``. Default 8.
        mlp_ratio: Hidden channels of the feed-forward network over ``C``. Default 4.
        act: Its activation, see :class:`Mlp`. Default ``'gelu'``.
        eps: Of the LayerNorm before it. Default 1e-6.
        with_prefix: Whether prefix tokens are read too (Perception Encoder). Default False.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dims``, a number is out of range, or ``act`` is unknown.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 8,
        mlp_ratio: float = 4.0,
        act: str = 'gelu',
        eps: float = 1e-6,
        with_prefix: bool = False,
    ) -> None:
        check_positive_int('embed_dims', embed_dims)
        check_divisor('num_heads', num_heads, 'embed_dims', embed_dims)
        check_number('mlp_ratio', mlp_ratio, above=0)
        made: Any = dict(
            norm_layer=partial(nn.LayerNorm, eps=check_eps(eps)),
            act_layer=partial(build_activation, act),
        )
        super().__init__(embed_dims, num_heads=num_heads, mlp_ratio=mlp_ratio, **made)
        self.with_prefix = with_prefix
        nn.init.trunc_normal_(self.latent, std=embed_dims**-0.5)
        self.apply(init_linear)
        # MMEngine would call timm's init_weights, which draws a loaded latent again.
        self.is_init = True

    def forward(  # type: ignore[override]  # called as all poolings are
        self, tokens: Tensor, layout: Layout | Grid
    ) -> Tensor:
        """``(B, P + H * W, C)`` to ``(B, C)``."""
        layout = Layout.of(tokens, layout)
        read = tokens if self.with_prefix else layout.split(tokens)[1]
        present = layout.token_mask() if self.with_prefix else layout.mask
        if present is None:
            return super().forward(read)
        hidden = read.new_zeros(len(present), 1, 1, present.shape[1])
        hidden = hidden.masked_fill(~present[:, None, None], torch.finfo(read.dtype).min / 2)
        return super().forward(read, hidden)


@MODELS.register_module()
class LayerClassAttention(nn.Module):
    """Layer-wise Class token Attention (CeiT, ICCV 2021, section 3.3): the class tokens of all layers are a sequence,
    with a learned embedding of their layer; after a transformer block, which neither drops paths nor has a position,
    the last one is the class token of the output.

    Args:
        embed_dims: Channels ``C``.
        num_layers: Layers ``L`` that have a class token.
        num_heads: Heads.
        hidden_dims: Channels between the layers of its feed-forward network.
        qkv_bias: Bias on queries, keys and values. Default True.
        norm_cfg: Token norm of its block. Default None, the block's.

    Shape:
        ``layer_position``: ``(1, L, C)``; zeros at first, and it decays, as in the released code.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        num_layers: int,
        num_heads: int,
        hidden_dims: int,
        qkv_bias: bool = True,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('num_layers', num_layers)
        attn = Attention(embed_dims, num_heads, qkv_bias)
        self.block = Block(embed_dims, attn, Mlp(embed_dims, hidden_dims), norm_cfg=norm_cfg)
        self.layer_position = nn.Parameter(torch.zeros(1, num_layers, embed_dims))

    def forward(self, tokens: Tensor) -> Tensor:
        """Class tokens ``(B, L, C)`` after each layer, the last one at the end, to ``(B, 1, C)``."""
        return self.block(tokens + self.layer_position, (1, tokens.shape[1]))[:, -1:]
