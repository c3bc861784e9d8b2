"""The two steps of DTN as autograd functions: few passes over memory, and little kept for the backward pass.

    B batch, T = H * W tokens, G heads, D channels per head, C = G * D
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .separable import moments, moments_backward, token_major
from .windows import Windows


class HeadRMSNorm(Function):
    """Divide each head of each token by its root mean square: ``x / sqrt(mean_D(x^2) + eps)``."""

    @staticmethod
    def forward(ctx, x: Tensor, eps: float) -> Tensor:
        """``(B, T, G, D)`` to the same shape."""
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / x.shape[-1]
        scale = (mean_square + eps).rsqrt_()
        out = x * scale
        ctx.save_for_backward(out, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        """``scale (grad - out mean_D(grad out))``."""
        out, scale = ctx.saved_tensors
        along = (grad * out).mean(dim=-1, keepdim=True)
        return torch.addcmul(grad, out, along, value=-1).mul_(scale), None


class DynamicTokenNorm(Function):
    """Equations 4 and 5 for given maps and ratios."""

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
        windows: Windows,
        eps: float,
        correction: int,
    ) -> Tensor:
        """Normalise.

        Args:
            ctx: Autograd's context.
            x: ``(B, T, G, D)``, contiguous, float32 or float64 like all tensors here.
            P_y: Row factor of the map.
            P_x: Column factor of the map.
            mean_ratio: Share of the intra-token mean, ``(G,)``.
            var_ratio: Share of the intra-token variance, ``(G,)``.
            weight: gamma, ``(C,)``.
            bias: beta, ``(C,)``.
            windows: Cells that the maps are between.
            eps: Added to the variance.
            correction: Taken from C in the intra-token variance's denominator.

        Returns:
            ``(B, T, G, D)``.
        """
        mean, var = _token_moments(x, correction)
        inter = moments(windows.mean(x), P_y, P_x)
        out, inv_std = _standardise(x, mean, var, inter, mean_ratio, var_ratio, windows, eps)
        ctx.save_for_backward(x, P_y, P_x, mean_ratio, var_ratio, weight, mean, var, inter)
        ctx.options = windows, eps, correction
        del inv_std
        return torch.addcmul(bias.view(x.shape[2:]), out, weight.view(x.shape[2:]))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of everything but the last three arguments."""
        x, P_y, P_x, mean_ratio, var_ratio, weight, mean, var, inter = ctx.saved_tensors
        windows, eps, correction = ctx.options
        G, D = x.shape[2:]
        normed, inv_std = _standardise(x, mean, var, inter, mean_ratio, var_ratio, windows, eps)

        grad_bias = grad.flatten(0, 1).sum(dim=0).view(-1)
        grad_weight = (grad * normed).flatten(0, 1).sum(dim=0).view(-1)

        # with respect to -mean and to -2 var of eq. 4
        to_mean = (grad * weight.view(G, D)).mul_(inv_std)
        to_var = normed.mul_(inv_std).mul_(to_mean)
        mean_rows, var_rows = (to.sum(dim=-1, keepdim=True) for to in (to_mean, to_var))

        inter_mean, inter_var = token_major(inter).chunk(2, dim=-1)
        mean_cells, var_cells = windows.sum(to_mean), windows.sum(to_var)
        grad_mean_ratio = _by_head(mean_cells * inter_mean) - _by_head(mean * mean_rows)
        grad_var_ratio = _by_head(var_cells * inter_var) - _by_head(var * var_rows)
        grad_cells, grad_P_y, grad_P_x = moments_backward(
            windows.mean(x),
            inter,
            mean_cells * (mean_ratio - 1).view(G, 1),
            var_cells * (0.5 * (var_ratio - 1)).view(G, 1),
            P_y,
            P_x,
            needs_maps=ctx.needs_input_grad[1] or ctx.needs_input_grad[2],
        )

        # intra-token: -mean_ratio to_mean / C - var_ratio to_var (x - mean) / (C - correction)
        slope = _over_heads(var_rows, var_ratio) / -max(G * D - correction, 1)
        shift = _over_heads(mean_rows, mean_ratio) / -(G * D) - slope * mean
        grad_x = to_mean.addcmul_(x, slope).add_(shift)
        windows.view(grad_x).add_(windows.mean_adjoint(grad_cells))
        return (
            grad_x, grad_P_y, grad_P_x, grad_mean_ratio, 0.5 * grad_var_ratio, grad_weight, grad_bias,
            None, None, None,
        )  # fmt: skip


def _by_head(values: Tensor) -> Tensor:
    """Sum ``(..., G, D)`` to ``(G,)``."""
    return values.flatten(0, -3).sum(dim=0).sum(dim=-1)


def _over_heads(rows: Tensor, ratio: Tensor) -> Tensor:
    """Weighted sum over heads, ``(B, T, G, 1)`` and ``(G,)`` to ``(B, T, 1, 1)``."""
    return (rows.squeeze(-1) @ ratio)[..., None, None]


def _token_moments(x: Tensor, correction: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over all channels of each token, ``(B, T, 1, 1)``, in two passes: exact for large means."""
    flat = x.flatten(2)
    mean = flat.mean(dim=-1, keepdim=True)
    channels = flat.shape[-1]
    var = (flat - mean).square_().sum(dim=-1, keepdim=True) / max(channels - correction, 1)
    return mean.unsqueeze(-1), var.unsqueeze(-1)


def _standardise(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    inter: Tensor,
    mean_ratio: Tensor,
    var_ratio: Tensor,
    windows: Windows,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """``(x - mu) / sqrt(var + eps)`` and ``1 / sqrt(var + eps)``, both ``(B, T, G, D)``."""
    D = x.shape[-1]
    inter_mean, inter_var = token_major(inter).chunk(2, dim=-1)
    # one ratio per channel rather than per head: operands that are contiguous together are vectorised together
    rest_mean, rest_var = (
        (1 - ratio).repeat_interleave(D).view(-1, D) for ratio in (mean_ratio, var_ratio)
    )
    inv_std, normed = torch.empty_like(x), torch.empty_like(x)
    torch.add(
        windows.spread(inter_var * rest_var),
        windows.view(var * var_ratio.view(-1, 1) + eps),
        out=windows.view(inv_std),
    )
    inv_std.rsqrt_()
    torch.sub(
        windows.view(x), windows.spread(inter_mean * rest_mean), out=windows.view(normed)
    )
    normed.sub_(mean * mean_ratio.view(-1, 1)).mul_(inv_std)
    return normed, inv_std
