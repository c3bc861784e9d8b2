"""Attention whose keys and values come from a smaller grid (PVT, PVTv2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_bool, check_positive_int, check_rate

from .patch_embed import pad_to_multiple

# Side of the grid that PVTv2's linear attention pools to.
LINEAR_GRID = 7


class SpatialReductionAttention(nn.Module):
    """Self-attention of all tokens to a reduced grid, through ``scaled_dot_product_attention``.

    Keys and values are read from the grid after a strided convolution and a LayerNorm (PVT, ICCV 2021, eq. 3), or, with
    ``linear=True``, after average pooling to 7 x 7 cells, a 1 x 1 convolution, a LayerNorm and a GELU, so that the
    cost is linear in the number of tokens (PVTv2, CVMJ 2022). Grids that are no multiple of ``sr_ratio`` are padded
    with zeros at the bottom and right: no cell is left out.

    Parameter names are the published ones: ``q``, ``kv``, ``proj``, ``sr``, ``norm``.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``.
        sr_ratio: Cells per reduced cell and axis; 1 (default) for no reduction. It plays no part if ``linear``.
        linear: Pool to 7 x 7 cells whatever the grid. Default False.
        qkv_bias: Bias on queries, keys and values. Default True.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dims``, or a size or rate is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        sr_ratio: int = 1,
        linear: bool = False,
        qkv_bias: bool = True,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive_int('embed_dims', embed_dims)
        self.num_heads = check_positive_int('num_heads', num_heads)
        if embed_dims % num_heads:
            raise ValueError(
                f'num_heads must divide embed_dims, got num_heads={num_heads}, embed_dims={embed_dims}'
            )
        self.sr_ratio = check_positive_int('sr_ratio', sr_ratio)
        self.linear = check_bool('linear', linear)
        self.attn_drop_rate = check_rate('attn_drop_rate', attn_drop_rate)
        self.q = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.reduces = self.linear or self.sr_ratio > 1
        if self.reduces:
            kernel = 1 if self.linear else self.sr_ratio
            self.sr = nn.Conv2d(embed_dims, embed_dims, kernel, stride=kernel)
            self.norm = nn.LayerNorm(embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(check_rate('proj_drop_rate', proj_drop_rate))

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Attend; ``(B, H * W, C)`` to the same shape, ``grid = (H, W)``.

        Without reduction there may be prefix tokens, ``(B, P + H * W, C)``; they attend and are attended to.
        """
        source = self._reduce(tokens, grid) if self.reduces else tokens
        query = self.q(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key, value = self.kv(source).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.attn_drop_rate if self.training else 0.0
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))

    def _reduce(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """``(B, H * W, C)`` to the tokens of the reduced grid."""
        maps = tokens.transpose(1, 2).unflatten(2, grid)
        if self.linear:
            maps = F.adaptive_avg_pool2d(maps, LINEAR_GRID)
        else:
            maps = pad_to_multiple(maps, (self.sr_ratio, self.sr_ratio))
        reduced = self.norm(self.sr(maps).flatten(2).transpose(1, 2))
        return F.gelu(reduced) if self.linear else reduced
