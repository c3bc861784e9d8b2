"""Attention from one grid to the next, of half its sides (LeViT)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_number, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.position import RelativePositionBias
from mmlape.registry import MODELS

from .normed_linear import NormedLinear
from .normed_mlp import NormedMlp
from .patch_embed import Stem, check_image
from .wide_values import WideValues


class SubsamplingAttention(WideValues):
    """Every other row and column of a grid asks, all its cells answer; each linear layer is followed by a norm.

    Args:
        in_channels: Channels of the tokens.
        embed_dims: Channels ``C`` out.
        grid: Pre-training grid of the tokens.
        num_heads: Heads.
        key_dims: Channels of a head's queries and keys.
        value_ratio: Channels of its values to those.
        norm_cfg: Token norm; None for ``mmlape.TokenBN``.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        grid: Grid,
        num_heads: int,
        key_dims: int,
        value_ratio: float,
        norm_cfg: dict | None,
    ) -> None:
        super().__init__(num_heads, key_dims, value_ratio)
        width = self.key_dims + self.value_dims
        self.kv = NormedLinear(in_channels, num_heads * width, norm_cfg=norm_cfg)
        self.q = NormedLinear(in_channels, num_heads * key_dims, norm_cfg=norm_cfg)
        self.proj = NormedLinear(num_heads * self.value_dims, embed_dims, norm_cfg=norm_cfg)
        self.offset_bias = RelativePositionBias(in_channels, num_heads, grid, mirrored=True)

    def forward(self, tokens: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """``(B, H * W, in_channels)`` to ``(B, ceil(H / 2) * ceil(W / 2), C)`` and its layout."""
        key, value = self.heads(self.kv(tokens, layout), self.key_dims, self.value_dims)
        asking = tokens.unflatten(1, layout.grid)[:, ::2, ::2]
        half = Layout((asking.shape[1], asking.shape[2]))
        (query,) = self.heads(self.q(asking.flatten(1, 2), half), self.key_dims)
        read = self.attend(query, key, value, self.offset_bias.bias(layout, layout, step=2))
        return self.proj(F.hardswish(read), half), half


@MODELS.register_module()
class AttentionSubsampling(Stem):
    """From a map to one of half its sides by attention (LeViT, ICCV 2021, section 4.2, "shrinking attention"), with a
    bias for every offset that differs by more than signs, and a feed-forward network after it, which drops no paths.

    Args:
        in_channels: Channels of the map.
        grid: Sides ``(H0, W0)`` of the map at the pre-training image size; other sides get the bias resized.
        embed_dims: Channels ``C`` out. Default 192.
        num_heads: Heads. Default None: ``in_channels // key_dims``.
        key_dims: Channels of a head's queries and keys. Default 16.
        value_ratio: Channels of its values to those. Default 4.
        mlp_ratio: Hidden channels of the feed-forward network to ``C``. Default 2.
        norm_cfg: Token norm after every linear layer. Default ``mmlape.TokenBN``.

    Raises:
        ValueError: If a value is out of range.
    """

    needs_grid = True

    def __init__(
        self,
        in_channels: int,
        grid: Grid,
        embed_dims: int = 192,
        num_heads: int | None = None,
        key_dims: int = 16,
        value_ratio: float = 4.0,
        mlp_ratio: float = 2.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        check_positive_int('embed_dims', embed_dims)
        check_positive_int('key_dims', key_dims)
        self.stride: Grid = (2, 2)
        norm_cfg = norm_cfg or dict(type='mmlape.TokenBN')
        heads = max(in_channels // key_dims, 1) if num_heads is None else num_heads
        self.attn = SubsamplingAttention(
            in_channels, embed_dims, grid, heads, key_dims, value_ratio, norm_cfg
        )
        hidden = int(embed_dims * check_number('mlp_ratio', mlp_ratio, above=0))
        self.mlp = NormedMlp(embed_dims, hidden, norm_cfg=norm_cfg)
        self.norm = build_token_norm(norm_cfg, embed_dims)
        nn.init.zeros_(self.norm.weight)

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, in_channels, height, width)`` to tokens ``(B, H * W, C)`` and their layout, see :meth:`grid_of`.

        Raises:
            ValueError: If the map has another shape.
        """
        check_image(image, self.in_channels, 'a map')
        layout = Layout((image.shape[2], image.shape[3]))
        tokens, layout = self.attn(image.flatten(2).transpose(1, 2), layout)
        return tokens + self.norm(self.mlp(tokens, layout), layout), layout
