"""Deformable attention's sampling on a CPU as one operator of PyTorch, ``mmlape::deformable_sampling``, in C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmlape.runtime.private import softmax_backward

from . import library

_ARGUMENTS = 'Tensor value, Tensor offsets, Tensor logits, Tensor references, SymInt[] shapes'


@torch.library.custom_op(
    'mmlape::deformable_sampling',
    mutates_args=(),
    device_types='cpu',
    schema=f'({_ARGUMENTS}) -> Tensor',
)
def deformable_sampling(
    value: Tensor, offsets: Tensor, logits: Tensor, references: Tensor, shapes: Sequence[int]
) -> Tensor:
    """Bilinear samples of maps around reference points, weighted by a softmax (Deformable DETR, ICLR 2021, eq. 3).

    It computes in float32 (float64 for such values) under autocast too, saves only its arguments for the backward
    pass, and gives the same in any number of threads.

    Args:
        value: ``(B, sum of H * W over levels, heads, D)``.
        offsets: ``(B, N, heads, levels, points, 2)``, (x, y) of samples in cells of their level, from the references.
        logits: ``(B, N, heads, levels, points)``; the softmax runs over levels and points.
        references: N pairs (x, y) in [0, 1] in any shape. They get no gradient.
        shapes: Height and width of each level, one after the other.

    Returns:
        ``(B, N, heads * D)``, of the type of ``value``. Outside of a map is zero; an offset that is not finite gives
        NaN.

    Raises:
        ValueError: If the shapes do not fit.
    """
    sizes, inputs = _inputs(value, offsets, logits, references, shapes)
    sampled = inputs[0].new_empty(len(value), offsets.shape[1], value.shape[2] * value.shape[3])
    library.call('deformable_forward', sampled.dtype, sizes, [*inputs, sampled])
    return sampled.to(value.dtype)


def _inputs(
    value: Tensor, offsets: Tensor, logits: Tensor, references: Tensor, shapes: Sequence[int]
) -> tuple[list[int], list[Tensor]]:
    """What the C++ functions read: sizes and dense arrays of one type."""
    batch, values, heads, width = value.shape
    queries, levels, points = offsets.shape[1], len(shapes) // 2, logits.shape[-1]
    samples = (batch, queries, heads, levels, points)
    cells = sum(height * across for height, across in zip(shapes[::2], shapes[1::2]))
    fits = logits.shape == samples and offsets.shape == (*samples, 2)
    fits = fits and references.numel() == 2 * queries
    if not fits or cells != values or len(shapes) != 2 * levels or min(shapes) < 0:
        raise ValueError(
            'value (B, sum of H * W, heads, D), offsets (B, N, heads, levels, points, 2), logits (B, N, heads, levels, '
            f'points), N references and shapes do not fit: got {tuple(value.shape)}, {tuple(offsets.shape)}, '
            f'{tuple(logits.shape)}, {tuple(references.shape)} and {tuple(shapes)}'
        )
    dtype = torch.promote_types(value.dtype, torch.float32)
    return [batch, values, heads, width, queries, levels, points, *shapes], [
        value.transpose(1, 2).to(dtype).contiguous(),
        offsets.to(dtype).contiguous(),
        logits.flatten(-2).softmax(dim=-1, dtype=dtype).contiguous(),
        references.to(dtype).contiguous(),
    ]


@torch.library.custom_op(
    'mmlape::deformable_sampling_backward',
    mutates_args=(),
    device_types='cpu',
    schema=f'(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)',
)
def _backward(
    grad: Tensor, value: Tensor, offsets: Tensor, logits: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values, offsets and logits."""
    sizes, inputs = _inputs(value, offsets, logits, *others)
    weights = inputs[2]
    grads = to_value, to_offsets, to_weights = [torch.zeros_like(each) for each in inputs[:3]]
    arrays = [*inputs, grad.to(weights.dtype).contiguous(), *grads]
    library.call('deformable_backward', weights.dtype, sizes, arrays)
    to_logits = softmax_backward(to_weights, weights, -1)
    return (
        to_value.transpose(1, 2).to(value.dtype).contiguous(),
        to_offsets.to(offsets.dtype),
        to_logits.view(logits.shape).to(logits.dtype),
    )


@deformable_sampling.register_fake
def _(value: Tensor, offsets: Tensor, *_: Any) -> Tensor:
    return value.new_empty(value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3])


@_backward.register_fake
def _(_grad: Tensor, value: Tensor, offsets: Tensor, logits: Tensor, *_: Any) -> tuple:
    return tuple(each.new_empty(each.shape) for each in (value, offsets, logits))


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.shapes = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple:
    return (*_backward(grad, *ctx.saved_tensors, ctx.shapes), None, None)


deformable_sampling.register_autograd(_gradients, setup_context=_save)
