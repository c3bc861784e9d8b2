"""DTN as one autograd function: few passes over memory, few new buffers, and little kept for the backward pass.

On CPUs :func:`mmlape.ops.dtn` takes the same steps, in C++.

B batch, T = H * W tokens, A x E cells, G heads, D channels per head, C = G * D
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .dtn_maps import along_rows, as_pairs, moments, moments_backward, without_traces
from .windows import Windows


class DTNOptions(NamedTuple):
    """What is fixed for a call.

    Attributes:
        windows: The grid, and the cells that maps are between.
        eps: Added to variances, and to the mean square of a head.
        stabilize: Heads are divided by their root mean square first, and the token's variance is unbiased.
    """

    windows: Windows
    eps: float
    stabilize: bool


class DTNFunction(Function):
    """Equations 4 and 5 of DTN (ICLR 2022) for given maps and ratios. Tensors are float32 or float64 throughout."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        P_y: Tensor,
        P_x: Tensor,
        mean_ratio: Tensor,
        var_ratio: Tensor,
        weight: Tensor,
        bias: Tensor,
        options: DTNOptions,
    ) -> Tensor:
        """Normalise.

        Args:
            ctx: Autograd's context.
            x: ``(B, T, G, D)``, contiguous.
            P_y: Row factor of the maps, ``(G or 1, A, A)``.
            P_x: Column factor, ``(G or 1, E, E)``.
            mean_ratio: Share of the token's own mean, ``(G, 1)``.
            var_ratio: Share of the token's own variance, ``(G, 1)``.
            weight: gamma, ``(G, D)``.
            bias: beta, ``(G, D)``.
            options: All else.

        Returns:
            ``(B, T, G, D)``.
        """
        scale = mean_square = None
        if options.stabilize:
            x, scale, mean_square = _divide_by_rms(x, options.eps)
        own_mean, own_var = _own_moments(x, mean_square, options.eps)
        cells = options.windows.mean(x)
        centre = cells.flatten(1, 2).mean(dim=1)[:, None, None]
        inter = moments(cells, centre, without_traces(P_y), without_traces(P_x), options.eps)
        inv_std = _inverse_std(own_var, inter, var_ratio, options)
        normed = _subtract_mean(x, own_mean, inter, mean_ratio, options).mul_(inv_std)
        ctx.save_for_backward(
            x, scale, own_mean, own_var, cells, centre, inter,
            P_y, P_x, mean_ratio, var_ratio, weight,
        )  # fmt: skip
        ctx.options = options
        return torch.addcmul(bias, normed, weight, out=normed)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        x, scale, own_mean, own_var, cells, centre, inter, *rest = ctx.saved_tensors
        P_y, P_x, mean_ratio, var_ratio, weight = rest
        options = ctx.options
        windows = options.windows
        if windows.pool == 1:
            inv_std = _second_half(inter)
        else:
            inv_std = _inverse_std(own_var, inter, var_ratio, options)
        normed = _subtract_mean(x, own_mean, inter, mean_ratio, options).mul_(inv_std)
        work = grad * normed
        grad_weight, grad_bias = work.sum(dim=(0, 1)), grad.sum(dim=(0, 1))

        # with respect to -mu and -2 var of eq. 4
        to_mean = (grad * weight).mul_(inv_std)
        to_var = normed.mul_(inv_std).mul_(to_mean)
        mean_rows, var_rows = (to.sum(dim=-1, keepdim=True) for to in (to_mean, to_var))

        # The ratios weigh mu_token - P x = (mu_token - mu) / (1 - ratio), and likewise for var. In the sums of
        # to_mean mu = to_mean x - grad weight normed and of to_var var = grad weight normed, most is known already.
        known = (grad_weight * weight).sum(dim=1, keepdim=True)
        along = torch.mul(to_mean, x, out=work).sum(dim=(0, 1)).sum(dim=1, keepdim=True)
        grad_mean_ratio = along - known - (own_mean * mean_rows).sum(dim=(0, 1))
        grad_var_ratio = (known - (own_var * var_rows).sum(dim=(0, 1))) / 2

        # inter-token statistics
        grad_inter = as_pairs(
            (windows.sum(to_mean), mean_ratio - 1), (windows.sum(to_var), (var_ratio - 1) / 2)
        )
        needs_maps = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        grad_cells, grad_P_y, grad_P_x = moments_backward(
            grad_inter, inter, cells, centre, without_traces(P_y), without_traces(P_x), needs_maps
        )

        # the token's own statistics
        channels = weight.numel()
        slope = (var_rows * var_ratio).sum(dim=2, keepdim=True) / -_freedom(channels, options)
        shift = (mean_rows * mean_ratio).sum(dim=2, keepdim=True) / -channels - slope * own_mean
        grad_x = to_mean.addcmul_(x, slope).add_(shift)
        windows.view(grad_x).add_(windows.mean_adjoint(grad_cells))
        if scale is not None:
            grad_x = _divide_by_rms_backward(grad_x, x, scale, work)
        return (
            grad_x,
            grad_P_y,
            grad_P_x,
            _divide_by_rest(grad_mean_ratio, mean_ratio),
            _divide_by_rest(grad_var_ratio, var_ratio),
            grad_weight,
            grad_bias,
            None,
        )


def _divide_by_rms(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``x / sqrt(mean_D(x^2) + eps)``, that factor ``(B, T, G, 1)``, and the mean square of the result."""
    mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / x.shape[-1]
    scale = (mean_square + eps).rsqrt_()
    return x * scale, scale, mean_square.mul_(scale).mul_(scale)


def _divide_by_rms_backward(grad: Tensor, out: Tensor, scale: Tensor, work: Tensor) -> Tensor:
    """``scale (grad - out mean_D(grad out))``; ``grad`` and ``work`` are overwritten."""
    along = torch.mul(grad, out, out=work).mean(dim=-1, keepdim=True)
    return grad.addcmul_(out, along, value=-1).mul_(scale)


def _own_moments(x: Tensor, mean_square: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Each token's mean and variance + eps over all channels, ``(B, T, 1, 1)``.

    For heads of known ``mean_square``, ``(B, T, G, 1)`` and at most 1, the unbiased variance follows from it. Otherwise
    two passes are made, which large means do not harm.
    """
    flat = x.flatten(2)
    channels = flat.shape[-1]
    mean = flat.mean(dim=-1, keepdim=True)
    if mean_square is None:
        var = (flat - mean).square_().mean(dim=-1, keepdim=True)
    else:
        var = (mean_square.mean(dim=2) - mean.square()).clamp_(min=0)
        var *= channels / max(channels - 1, 1)
    return mean.unsqueeze(-1), var.add_(eps).unsqueeze(-1)


def _freedom(channels: int, options: DTNOptions) -> int:
    """Denominator of the token's own variance."""
    return max(channels - 1, 1) if options.stabilize else channels


def _divide_by_rest(grad: Tensor, ratio: Tensor) -> Tensor:
    """``grad / (1 - ratio)``; where a sigmoid has come to 1 exactly, anything finite will do."""
    return grad / (1 - ratio).clamp_(min=torch.finfo(ratio.dtype).eps)


def _second_half(inter: Tensor) -> Tensor:
    return along_rows(inter.unbind()[1]).flatten(1, 2)


def _inverse_std(own_var: Tensor, inter: Tensor, ratio: Tensor, options: DTNOptions) -> Tensor:
    """``1 / sqrt(var + eps)`` of eq. 4, ``(B, T, G, D)``; unpooled it takes the place of the variance in ``inter``."""
    windows = options.windows
    inter_var = along_rows(inter.unbind()[1])
    B, T = own_var.shape[:2]
    G, D = inter_var.shape[-2:]
    ratio = _by_channel(ratio, D)
    if windows.pool == 1:
        inv_std = inter_var.flatten(1, 2)
        windows.view(inv_std).lerp_(windows.view(own_var), ratio)
    else:
        inv_std = own_var.new_empty(B, T, G, D)
        var = windows.view(inv_std)
        torch.lerp(windows.spread(inter_var), windows.view(own_var), ratio, out=var)
    return inv_std.rsqrt_()


def _subtract_mean(
    x: Tensor, own_mean: Tensor, inter: Tensor, ratio: Tensor, options: DTNOptions
) -> Tensor:
    """``x - mu`` of eq. 4, ``(B, T, G, D)``."""
    windows = options.windows
    inter_mean = along_rows(inter.unbind()[0])
    out = torch.empty_like(x)
    mean, ratio = windows.view(out), _by_channel(ratio, x.shape[-1])
    torch.lerp(windows.spread(inter_mean), windows.view(own_mean), ratio, out=mean)
    return torch.sub(x, out, out=out)


def _by_channel(ratio: Tensor, channels: int) -> Tensor:
    """``(G, D)``: PyTorch vectorises over operands that are contiguous together, not over one value per head."""
    return ratio.expand(-1, channels).contiguous()
