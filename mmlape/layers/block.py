"""Transformer blocks, by where their norms stand."""

from __future__ import annotations

import copy
from typing import ClassVar, cast

from timm.layers import LayerScale
from torch import Tensor, nn

from mmlape.checks import check_number, check_positive_int, check_rate
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.position import AttentionPlan
from mmlape.registry import MODELS

from .basic import DropPath

# The position added to the tokens that attention reads, and the position inside the attention.
Positions = tuple[Tensor | None, AttentionPlan | None]


@MODELS.register_module()
class Block(nn.Module):
    """``x = x + attn(norm1(x, layout) + position, layout);  x = x + mlp(norm2(x, layout), layout)``.

    Parameter names are timm's (``norm1``, ``attn.qkv``, ``ls1.gamma``, ``mlp.fc1``, ...).

    Args:
        embed_dims: Channels ``C``.
        attn: Attention layer, called as ``attn(tokens, layout)``.
        mlp: Feed-forward network, called as ``mlp(tokens, layout)``.
        layer_scale: Initial value of a learned per-channel scale on both branches, True for 1; None (default) or False
            for no scale.
        drop_path_rate: Probability of dropping a branch for one image. Default 0.
        norm_cfg: Token norm, see :func:`~mmlape.norm.build_token_norm`. Default ``mmlape.LN`` with eps 1e-6.
    """

    # Whether the weights of its norms start at 0.
    starts_as_identity: ClassVar[bool] = False
    # Whether both branches share one norm and one layer scale.
    one_norm: ClassVar[bool] = False

    def __init__(
        self,
        embed_dims: int,
        attn: nn.Module,
        mlp: nn.Module,
        layer_scale: bool | float | None = None,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        norm_cfg = dict(type='mmlape.LN', eps=1e-6) if norm_cfg is None else norm_cfg
        check_rate('drop_path_rate', drop_path_rate)
        self.norm1 = build_token_norm(norm_cfg, embed_dims)
        self.attn = attn
        self.ls1 = _layer_scale(embed_dims, layer_scale)
        self.norm2 = build_token_norm(norm_cfg, embed_dims)
        self.mlp = mlp
        self.ls2 = _layer_scale(embed_dims, layer_scale)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()
        for norm in (self.norm1, self.norm2) if self.starts_as_identity else ():
            nn.init.zeros_(norm.weight)
        if self.one_norm:
            del self.norm2, self.ls2

    def forward(
        self,
        tokens: Tensor,
        layout: Layout | Grid,
        position: Tensor | None = None,
        plan: AttentionPlan | None = None,
    ) -> Tensor:
        """Transform tokens.

        Args:
            tokens: ``(B, P + H * W, C)``.
            layout: Where they lie, or their grid ``(H, W)``.
            position: ``(1, P + H * W, C)`` added to the normalised tokens that attention reads, or None.
            plan: A position inside the attention that serves all layers, or None.
        """
        tokens = tokens + self.attended(tokens, layout, (position, plan))
        return self.feed_forward(tokens, layout)

    def read(self, tokens: Tensor, layout: Layout | Grid, positions: Positions) -> Tensor:
        """Add their position to tokens ``(B, P + H * W, C)``, and attend."""
        position, plan = positions
        placed = tokens if position is None else tokens + position
        return self.attn(placed, layout) if plan is None else self.attn(placed, layout, plan)

    def attended(self, tokens: Tensor, layout: Layout | Grid, positions: Positions) -> Tensor:
        """Compute what the first branch adds to tokens."""
        return self.drop_path(self.ls1(self.read(self.norm1(tokens, layout), layout, positions)))

    def fed(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """Compute what the second branch adds to tokens after attention."""
        return self.drop_path(self.ls2(self.mlp(self.norm2(tokens, layout), layout)))

    def feed_forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """Tokens after attention and the second branch."""
        return tokens + self.fed(tokens, layout)


@MODELS.register_module()
class StreamNormBlock(Block):
    """``x = norm2(x + attn(norm1(x, layout) + position, layout), layout);  x = x + mlp(x, layout)``.

    The second norm stays in the stream (Compact Transformers, arXiv 2021, code). Arguments and parameter names are
    those of :class:`Block`; the published ``pre_norm`` is ``norm1``, the published ``norm1`` is ``norm2``.
    """

    def feed_forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """The norm and the second branch."""
        tokens = self.norm2(tokens, layout)
        return tokens + self.drop_path(self.ls2(self.mlp(tokens, layout)))


@MODELS.register_module()
class PostNormBlock(Block):
    """``x = x + norm1(attn(x + position, layout), layout);  x = x + norm2(mlp(x, layout), layout)``: norms at the end
    of branches, and none before them (LeViT, ICCV 2021, where it is a batch norm).

    Args: those of :class:`Block`.
    """

    starts_as_identity = True

    def attended(self, tokens: Tensor, layout: Layout | Grid, positions: Positions) -> Tensor:
        return self.drop_path(self.ls1(self.norm1(self.read(tokens, layout, positions), layout)))

    def fed(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        return self.drop_path(self.ls2(self.norm2(self.mlp(tokens, layout), layout)))


@MODELS.register_module()
class ParallelBlock(Block):
    """``y = norm1(x, layout);  x = x + attn(y + position, layout) + mlp(y, layout)``: both branches at once, with one
    norm and one layer scale (ViT-22B, ICML 2023, section 2).

    Args: those of :class:`Block`.
    """

    one_norm = True

    def attended(self, tokens: Tensor, layout: Layout | Grid, positions: Positions) -> Tensor:
        """Compute what both branches add to tokens."""
        normed = self.norm1(tokens, layout)
        read = self.read(normed, layout, positions)
        return self.drop_path(self.ls1(read + self.mlp(normed, layout)))

    def feed_forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """Tokens as they are: both branches have run."""
        return tokens


def _layer_scale(embed_dims: int, init_value: bool | float | None) -> nn.Module:
    if init_value is None or init_value is False:
        return nn.Identity()
    value = 1.0 if init_value is True else check_number('layer_scale', init_value, minimum=0)
    return LayerScale(embed_dims, value)


@MODELS.register_module()
class SeveralBranchesBlock(Block):
    """``x = x + sum_i attn_i(norm1_i(x) + position);  x = x + sum_i mlp_i(norm2_i(x))``: a network half as deep, of as
    many layers (Three things everyone should know about Vision Transformers, ECCV 2022, section 3).

    The first branches have the names of :class:`Block`, the others are blocks in ``others``.

    Args: those of :class:`Block`, and

        num_branches: Branches side by side, at least 2. Default 2.

    Raises:
        ValueError: If there are fewer than 2 branches.
    """

    def __init__(
        self,
        embed_dims: int,
        attn: nn.Module,
        mlp: nn.Module,
        layer_scale: bool | float | None = None,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
        num_branches: int = 2,
    ) -> None:
        super().__init__(embed_dims, attn, mlp, layer_scale, drop_path_rate, norm_cfg)
        others = []
        for _ in range(check_positive_int('num_branches', num_branches, minimum=2) - 1):
            attn, mlp = copy.deepcopy(attn), copy.deepcopy(mlp)
            for part in (attn, mlp):  # branches that are alike would learn alike
                part.apply(_draw_again)
            others.append(Block(embed_dims, attn, mlp, layer_scale, drop_path_rate, norm_cfg))
        self.others = nn.ModuleList(others)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout | Grid,
        position: Tensor | None = None,
        plan: AttentionPlan | None = None,
    ) -> Tensor:
        """Transform tokens, see :meth:`Block.forward`."""
        blocks = [self, *cast('list[Block]', list(self.others))]
        for branch in [each.attended(tokens, layout, (position, plan)) for each in blocks]:
            tokens = tokens + branch
        for branch in [each.fed(tokens, layout) for each in blocks]:
            tokens = tokens + branch
        return tokens


def _draw_again(module: nn.Module) -> None:
    reset = getattr(module, 'reset_parameters', None)
    if reset is not None:
        reset()
