"""Attention whose values are wider than its queries and keys (LeViT)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mmlape.checks import check_number, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position import AttentionPosition, InsidePlan
from mmlape.registry import MODELS

from .attention import AttentionLayer
from .normed_linear import NormedLinear, PlainLinear


class WideValues(AttentionLayer):
    """Attention layers whose heads have ``key_dims`` channels of queries and keys, and ``value_dims`` of values."""

    key_dims: int

    def __init__(
        self,
        num_heads: int,
        key_dims: int,
        value_ratio: float,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
    ) -> None:
        check_positive_int('num_heads', num_heads)
        dims = num_heads * check_positive_int('key_dims', key_dims)
        super().__init__(dims, num_heads, attn_drop_rate, proj_drop_rate, None)
        self.key_dims = key_dims
        self.value_dims = int(key_dims * check_number('value_ratio', value_ratio, above=0))

    def heads(self, tokens: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """``(B, N, heads * sum(widths))`` as ``(B, heads, N, width)`` for every width, side by side in each head."""
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).split(widths, dim=-1)


@MODELS.register_module()
class WideValueAttention(WideValues):
    """Self-attention whose values are wider than its queries and keys, with a norm after their projection and a
    hardswish before the output's (LeViT, ICCV 2021, section 4.2); the norm of the result is its block's.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads.
        key_dims: Channels of a head's queries and keys. Default 16.
        value_ratio: Channels of its values to those. Default 2.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.
        position: What a position adds to the scores (see :class:`~mmlape.position.AttentionPosition`). Default None.
        norm_cfg: Token norm of queries, keys and values. Default ``mmlape.TokenBN``.

    Raises:
        ValueError: If a value is out of range, or the position does more than add to scores.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        key_dims: int = 16,
        value_ratio: float = 2.0,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(num_heads, key_dims, value_ratio, attn_drop_rate, proj_drop_rate)
        width = 2 * self.key_dims + self.value_dims
        self.qkv = NormedLinear(embed_dims, num_heads * width, norm_cfg=norm_cfg)
        self.proj = PlainLinear(num_heads * self.value_dims, embed_dims, bias=False)
        self.position = position

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, inside: InsidePlan | None = None
    ) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape."""
        layout = Layout.of(tokens, layout)
        widths = (self.key_dims, self.key_dims, self.value_dims)
        query, key, value = self.heads(self.qkv(tokens, layout), *widths)
        inside, bias = self.inside(layout, layout, inside), None
        if inside is not None:
            if inside.position.places:
                raise ValueError(
                    f'{type(self).__name__} takes a position that is added to scores, e.g. '
                    f'mmlape.RelativePositionBias, got {type(inside.position).__name__}'
                )
            bias = inside.bias(layout, layout)
        read = self.attend(query, key, value, bias, layout.token_mask())
        return self.project(F.hardswish(read))
