"""Feed-forward networks of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout, maps_of
from mmlape.norm import TokenNorm, build_token_norm
from mmlape.registry import MODELS
from mmlape.runtime.private import gelu_backward, has_hooks
from mmlape.runtime.tracing import is_eager

from .basic import (
    NormedLinear,
    PlainLinear,
    build_activation,
    build_dropout,
)


@MODELS.register_module()
class Mlp(timm.layers.Mlp):
    """timm's two-layer feed-forward network, called as ``mlp(tokens, layout)``.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after each layer. Default 0.
        act: Activation: ``'gelu'`` (default), ``'gelu_tanh'`` (SigLIP), ``'quick_gelu'`` (OpenAI's CLIP), ``'relu'`` or
            ``'silu'``.
        norm_cfg: Token norm before the second layer. Default None, none.

    Raises:
        ValueError: If a size or rate is out of range, or ``act`` is unknown.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        act: str = 'gelu',
        norm_cfg: dict | None = None,
    ) -> None:
        check_positive_int('hidden channels of the feed-forward network', hidden_dims)
        super().__init__(embed_dims, hidden_dims)
        self.act = build_activation(act)
        if norm_cfg is not None:
            self.norm = build_token_norm(norm_cfg, hidden_dims)
        dropout = build_dropout('drop_rate', drop_rate)
        self.drop1, self.drop2 = cast(nn.Dropout, dropout), cast(nn.Dropout, dropout)

    def forward(self, tokens: Tensor, layout: Layout | Grid | None = None) -> Tensor:
        """``(B, N, C)`` to the same shape."""
        hidden = self.fc1(tokens)
        if isinstance(self.drop1, nn.Identity) and isinstance(self.norm, nn.Identity):
            return self.drop2(gelu_linear(self.act, hidden, self.fc2))
        hidden = self.drop1(self.act(hidden))
        if isinstance(self.norm, TokenNorm):
            hidden = self.norm(hidden, layout)
        return self.drop2(self.fc2(hidden))


@MODELS.register_module()
class ConvMlp(nn.Module):
    """Linear, 3 x 3 depthwise convolution on the grid, GELU, linear (PVTv2, CVMJ 2022), where zero padding tells tokens
    where they are; on every level of a pyramid of tokens in ViT-Adapter's extractors (ICLR 2023, eq. 3).

    Parameter names are the published ones: ``fc1``, ``dwconv.dwconv``, ``fc2``.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after the activation and at the end. Default 0.
        extra_relu: ReLU before the convolution, as published with linear attention. Default False.
    """

    # Whether tokens without a place on the grid can take part.
    takes_prefix = False

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        extra_relu: bool = False,
    ) -> None:
        super().__init__()
        check_positive_int('hidden channels of the convolutional feed-forward network', hidden_dims)
        self.extra_relu = extra_relu
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        conv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.dwconv = nn.ModuleDict({'dwconv': conv})
        self.fc2 = nn.Linear(hidden_dims, embed_dims)
        self.act = nn.GELU()
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid | Sequence[Grid]) -> Tensor:
        """``(B, N, C)`` to the same shape.

        Args:
            tokens: ``(B, H * W, C)``, or those of the levels of a pyramid, one after the other.
            layout: Where they lie, or (height, width) of each level. Cells that a mask hides are zeros to their
                neighbours.

        Raises:
            ValueError: If there are prefix tokens, which have no neighbours.
        """
        hidden = self.fc1(tokens)
        if self.extra_relu:
            hidden = F.relu(hidden)
        if not isinstance(layout, Layout) and isinstance(layout[0], Sequence):
            shapes = cast('Sequence[Grid]', layout)
            levels = hidden.split([height * width for height, width in shapes], dim=1)
            mixed = torch.cat([self._mix(*level) for level in zip(levels, shapes)], dim=1)
        else:
            layout = Layout.of(tokens, cast('Layout | Grid', layout))
            if layout.num_prefix:
                raise ValueError(f'ConvMlp takes no prefix tokens, got {layout.num_prefix}')
            if layout.mask is not None:
                hidden = hidden.masked_fill(~layout.mask.unsqueeze(-1), 0)
            mixed = self._mix(hidden, layout.grid)
        if isinstance(self.drop, nn.Identity):
            return gelu_linear(self.act, mixed, self.fc2)
        return self.drop(self.fc2(self.drop(self.act(mixed))))

    def _mix(self, hidden: Tensor, grid: Grid) -> Tensor:
        maps = self.dwconv['dwconv'](maps_of(hidden, grid))
        return maps.flatten(2).transpose(1, 2)


@MODELS.register_module()
class LocallyEnhancedMlp(nn.Module):
    """Locally-enhanced Feed-Forward (CeiT, ICCV 2021, section 3.2): linear, 3 x 3 depthwise convolution on the grid,
    linear, each with a norm, the first two with a GELU too. Prefix tokens leave as they came.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after each activation and at the end. Default 0.
        norm_cfg: Token norm after each of the three. Default ``mmlape.TokenBN``.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('hidden channels of the locally enhanced network', hidden_dims)
        norm_cfg = dict(type='mmlape.TokenBN') if norm_cfg is None else norm_cfg
        self.fc1 = NormedLinear(embed_dims, hidden_dims, bias=True, norm_cfg=norm_cfg)
        self.conv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.norm = build_token_norm(norm_cfg, hidden_dims)
        self.fc2 = NormedLinear(hidden_dims, embed_dims, bias=True, norm_cfg=norm_cfg)
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """``(B, P + H * W, C)`` to the same shape. Cells that a mask hides are zeros to their neighbours."""
        layout = Layout.of(tokens, layout)
        prefix, cells = layout.split(tokens)
        alone = layout.with_prefix(0)
        hidden = self.drop(F.gelu(self.fc1(cells, alone)))
        if layout.mask is not None:
            hidden = hidden.masked_fill(~layout.mask.unsqueeze(-1), 0)
        mixed = self.conv(alone.to_maps(hidden)).flatten(2).transpose(1, 2)
        hidden = self.drop(F.gelu(self.norm(mixed, alone)))
        return layout.join(prefix, self.drop(self.fc2(hidden, alone)))


@MODELS.register_module()
class SwiGLU(nn.Module):
    """``fc2(act(gate) x)`` with ``gate, x = fc1(tokens)`` (GLU Variants Improve Transformer, arXiv 2020, eq. 6), as in
    EVA-02, DINOv2's giant and DINOv3. The first half of ``fc1`` is the gate.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between, after the gate; ``fc1`` has twice as many.
        drop_rate: Dropout after the gate and at the end. Default 0.
        act: Activation of the gate, see :class:`~mmlape.layers.Mlp`. Default ``'silu'``.
        norm_cfg: Token norm before ``fc2`` (EVA-02). Default None, none.

    Raises:
        ValueError: If a size or rate is out of range, or ``act`` is unknown.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        act: str = 'silu',
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('hidden channels of the feed-forward network', hidden_dims)
        self.fc1 = nn.Linear(embed_dims, 2 * hidden_dims)
        self.act = build_activation(act)
        self.norm = None if norm_cfg is None else build_token_norm(norm_cfg, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid | None = None) -> Tensor:
        """``(B, N, C)`` to the same shape."""
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        hidden = self.drop(self.act(gate) * value)
        if self.norm is not None:
            hidden = self.norm(hidden, layout)
        return self.drop(self.fc2(hidden))


@MODELS.register_module()
class NormedMlp(nn.Module):
    """Linear, norm, hardswish, linear, all without biases (LeViT, ICCV 2021, section 4.2); the norm of the result is
    its block's.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after the activation and at the end. Default 0.
        norm_cfg: Token norm between. Default ``mmlape.TokenBN``.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('hidden channels of the feed-forward network', hidden_dims)
        self.fc1 = NormedLinear(embed_dims, hidden_dims, norm_cfg=norm_cfg)
        self.fc2 = PlainLinear(hidden_dims, embed_dims, bias=False)
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """``(B, N, C)`` to the same shape."""
        return self.drop(self.fc2(self.drop(F.hardswish(self.fc1(tokens, layout)))))


def gelu_linear(act: nn.Module, hidden: Tensor, layer: nn.Module) -> Tensor:
    """``layer(act(hidden))``. Where autograd would save both what enters GELU and what leaves it, it saves the first
    alone; the second, the widest tensor of a feed-forward network, is computed again in the backward pass. A layer with
    hooks or a ``forward`` of its own, or that is not a plain linear layer, is called as it is."""
    if not (torch.is_grad_enabled() and hidden.requires_grad and _can_merge(act, hidden, layer)):
        return layer(act(hidden))
    weight, bias = layer.weight, layer.bias
    if weight.dtype != hidden.dtype:  # under autocast
        weight, bias = weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
    product = getattr(layer, 'product', F.linear)  # that of mmlape.cpu's
    return _GeluLinear.apply(hidden, weight, bias, act.approximate, product)


def _can_merge(act: nn.Module, hidden: Tensor, layer: nn.Module) -> bool:
    """Whether the two compute nothing but GELU and a product, of a weight that has a gradient."""
    return (
        isinstance(act, nn.GELU)
        and isinstance(layer, nn.Linear)
        and (type(layer) is nn.Linear or hasattr(layer, 'product'))
        and layer.weight.requires_grad
        and is_eager(hidden, layer.weight)
        and not has_hooks(act)
        and not has_hooks(layer)
        and 'forward' not in {*vars(act), *vars(layer)}
    )


class _GeluLinear(Function):
    """``product(F.gelu(hidden, approximate), weight, bias)``, differentiable any number of times."""

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        approximate: str,
        product: Callable[..., Tensor],
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.approximate, ctx.product = approximate, product
        return product(F.gelu(hidden, approximate=approximate), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        grad_hidden = grad_weight = None
        if needs_weight:
            read = F.gelu(hidden, approximate=ctx.approximate).flatten(0, -2)
            # The smaller matrix first: libraries of CPUs read the left one row by row.
            if rows.shape[1] <= read.shape[1] or not rows.is_cpu:
                grad_weight = ctx.product(rows.mT, read.mT)
            else:
                grad_weight = ctx.product(read.mT, rows.mT).mT
            del read  # before the gradient of the same size is made
        if needs_hidden:
            grad_hidden = gelu_backward(ctx.product(grad, weight.mT), hidden, ctx.approximate)
        return grad_hidden, grad_weight, rows.sum(0) if needs_bias else None, None, None
