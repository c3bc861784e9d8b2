"""Attention whose keys and values come from a smaller grid (PVT, PVTv2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position import AttentionPosition, InsidePlan
from mmlape.registry import MODELS

from .attention import AttentionLayer
from .linear import Linear
from .patch_embed import pad_to_multiple
from .strided_conv import PatchConv2d

# Side of the grid that PVTv2's linear attention pools to.
LINEAR_GRID = 7


@MODELS.register_module()
class SpatialReductionAttention(AttentionLayer):
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
        position: What a position does to queries, keys, values and scores (see
            :class:`~mmlape.position.AttentionPosition`). Default None, nothing.

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
        position: AttentionPosition | None = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate, None)
        self.sr_ratio = check_positive_int('sr_ratio', sr_ratio)
        self.linear = linear
        self.q = Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.kv = Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.reduces = self.linear or self.sr_ratio > 1
        if self.reduces:
            kernel = 1 if self.linear else self.sr_ratio
            self.sr = PatchConv2d(embed_dims, embed_dims, kernel)
            self.norm = nn.LayerNorm(embed_dims)
        self.proj = Linear(embed_dims, embed_dims)
        self.position = position

    @property
    def takes_prefix(self) -> bool:
        """Only without reduction, which needs places."""
        return not self.reduces

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, inside: InsidePlan | None = None
    ) -> Tensor:
        """Attend; ``(B, H * W, C)`` to the same shape.

        Without reduction there may be prefix tokens, ``(B, P + H * W, C)``; they attend and are attended to.

        Raises:
            ValueError: With reduction, if there are prefix tokens or a mask.
        """
        layout = Layout.of(tokens, layout)
        source, keys = self._reduce(tokens, layout) if self.reduces else (tokens, layout)
        (query,) = self.split_heads(self.q(tokens), 1)
        key, value = self.split_heads(self.kv(source), 2)
        inside, bias = self.inside(layout, keys, inside), None
        if inside is not None:
            query, key, value = inside.place(query, key, value)
            bias = inside.bias(layout, keys)
        return self.project(self.attend(query, key, value, bias, keys.token_mask()))

    def _reduce(self, tokens: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """``(B, H * W, C)`` to the tokens of the reduced grid, and their layout."""
        if layout.num_prefix or layout.mask is not None:
            raise ValueError(
                f'spatial reduction takes no prefix tokens and no mask, got {layout.num_prefix} prefix tokens'
                f'{"" if layout.mask is None else " and a mask"}'
            )
        maps = layout.to_maps(tokens)
        if self.linear:
            maps = F.adaptive_avg_pool2d(maps, LINEAR_GRID)
        else:
            maps = pad_to_multiple(maps, (self.sr_ratio, self.sr_ratio))
        maps = self.sr(maps)
        reduced = self.norm(maps.flatten(2).transpose(1, 2))
        keys = Layout((maps.shape[2], maps.shape[3]))
        return (F.gelu(reduced) if self.linear else reduced), keys
