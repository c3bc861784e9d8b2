"""DTN by Triton kernels, as ``mmlape::dtn_gpu`` of PyTorch: four launches forward, five backward.

Bytes that they move per channel of a token, with tokens of s bytes and cells of p x p tokens (p > 1):

* forward 3 s + 40 / p^2; the floor, x read twice and the result written, is 3 s
* backward 5 s + 92 / p^2; the floor, x and the gradient read twice and a gradient written, is 5 s

For p = 1, 4 s + 32 and 7 s + 80, which matters where the tokens do not fit into the GPU's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import dtn_gradient_kernels as gradient_kernels
from . import dtn_kernels as kernels

# height, width, pool, prefix tokens, heads; fixed shares of the own mean and variance where omegas are None
_OPTIONS = 'SymInt[] sizes, float eps, bool stabilize, float mean_ratio, float var_ratio'
_TENSORS = 'Tensor x, Tensor positions, Tensor? mean_omega, Tensor? var_omega, Tensor weight'
# Elements of a tile of tokens, and of one token, with heads and channels rounded up to powers of two.
TILE, MOST = 1024, 4096
# Programs that go through all cells of all images: each leaves a row of sums over its tokens.
PROGRAMS = 1024
# Blocks of products: rows of the result, what is summed at a time, and columns; gradients are three products each.
ROWS, STEP, COLUMNS, GRADIENT_COLUMNS = 32, 16, 64, 32
# Chunks of cells of which the centre is made: few, since each block of a product sums them up again.
PARTS = 32


class _Plan(NamedTuple):
    """Sizes of a call; ``tile``: constants of kernels that read whole tokens; ``cut``: of those that go by cells."""

    B: int
    H: int
    W: int
    A: int
    E: int
    prefix: int
    chunk: int
    chunks: int
    model: dict
    tile: dict
    cut: dict

    @classmethod
    def of(cls, x: Tensor, sizes: Sequence[int], stabilize: bool) -> _Plan:
        height, width, pool, prefix, heads = sizes
        batch, depth = x.shape[0], x.shape[2] // heads
        rows, columns = _cells(sizes)
        model = dict(G=heads, D=depth, POOL=pool, STABILIZE=stabilize)
        sides = dict(HEADS=_power_of_two(heads), DEPTH=_power_of_two(depth))
        of_token = sides['HEADS'] * sides['DEPTH']
        tokens = min(max(TILE // of_token, 1), 16)
        warps = 4 if of_token <= TILE else 8
        tile = dict(sides, TOKENS=tokens, num_warps=warps)
        cut = dict(tile, TOKENS=tokens if pool == 1 else min(tokens, _power_of_two(pool**2)))
        chunk = _blocks(rows * columns, max(PROGRAMS // max(batch, 1), 1))
        chunk = max(chunk, tokens if pool == 1 else 1)
        chunks = _blocks(rows * columns, chunk)
        return cls(batch, height, width, rows, columns, prefix, chunk, chunks, model, tile, cut)

    def of_tokens(self) -> tuple[int, ...]:
        """Sizes for kernels that read tokens."""
        return self.H, self.W, self.E, self.prefix, self.A * self.E

    def blocks(self, of_rows: bool, across: int) -> tuple[int, int, int]:
        """The grid of a product along an axis, for blocks of so many columns."""
        length, others = (self.A, self.E) if of_rows else (self.E, self.A)
        heads, depth = self.model['G'], self.model['D']
        return self.B * heads, _blocks(others * 2 * depth, across), _blocks(length, ROWS)

    def token_blocks(self, tokens: int) -> int:
        """The number of blocks of so many tokens."""
        return self.B * _blocks(self.prefix + self.H * self.W, tokens)


def supports_width(channels: int, heads: int) -> bool:
    """Whether a token fits into a tile."""
    return _power_of_two(heads) * _power_of_two(channels // heads) <= MOST


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _blocks(count: int, size: int) -> int:
    return -(-count // size)


def _cells(sizes: Sequence[Any]) -> tuple[Any, Any]:
    height, width, pool = sizes[:3]
    return -(-height // pool), -(-width // pool)


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    kernel[grid](*args, **constants)


def _on_device(x: Tensor) -> AbstractContextManager:
    """Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _statistics(x: Tensor, sizes: Sequence[Any]) -> list[Tensor]:
    """Memory for what the backward pass needs: moments, cells or scales, centre and rows of ``dtn_kernels``."""
    B, C = x.shape[0], x.shape[2]
    _height, _width, pool, _prefix, G = sizes
    A, E = _cells(sizes)
    cells = (B, A * E, C if pool > 1 else G)
    shapes = (B, G, A, E, 2, C // G), cells, (B, C), (G, A + E, 4)
    return [x.new_empty(shape, dtype=torch.float32) for shape in shapes]


def _dense(x: Tensor, parameters: Sequence[Tensor | None], sizes: Sequence[int]) -> list[Any]:
    """Dense arrays, of shapes that kernels may read.

    Raises:
        ValueError: If shapes or devices do not fit.
    """
    height, width, pool, prefix, heads = sizes
    C, own = x.shape[-1], [each for each in parameters if each is not None]
    expected = (heads, 3), (heads,), (heads,), (C,), (C,)
    fits = x.shape[1:-1] == (prefix + height * width,) and min(pool, heads) > 0 and C % heads == 0
    fits = fits and all(
        each is None or each.shape == shape for each, shape in zip(parameters, expected)
    )
    if not fits or any(each.device != x.device for each in own):
        got = ', '.join(f'{tuple(each.shape)} on {each.device}' for each in (x, *own))
        raise ValueError(
            'x (B, P + H * W, C), positions (G, 3), omegas (G,), weight and bias (C,) on one device and sizes '
            f'(H, W, pool, P, G) do not fit: got {got} and {tuple(sizes)}'
        )
    return [None if each is None else each.contiguous() for each in (x, *parameters)]


def _sources(x: Tensor, cells: Tensor, plan: _Plan) -> tuple[Tensor | None, ...]:
    """Where kernels find values of cells: x and scales, or cells."""
    return (x, None, cells) if plan.model['POOL'] == 1 else (None, cells, None)


def _describe(
    x: Tensor, positions: Tensor, statistics: Sequence[Tensor], plan: _Plan, eps: float
) -> Tensor:
    """Fill in cells or scales, and rows; return the sum of each chunk of cells."""
    _, cells, centre, rows = statistics
    sums = centre.new_empty(plan.B * plan.chunks, x.shape[2])
    of_rows = plan.model['G'] * (_blocks(plan.A, 16) + _blocks(plan.E, 16))
    _launch(
        kernels.describe, (of_rows + plan.B * plan.chunks,), x, positions,
        *_sources(x, cells, plan)[1:], sums, rows, *plan.of_tokens(), plan.chunk, plan.chunks, eps,
        **plan.model, **plan.cut, ROWS=16, COLUMNS=64,
    )  # fmt: skip
    return sums


def _first_pairs(
    x: Tensor,
    positions: Tensor,
    statistics: Sequence[Tensor],
    plan: _Plan,
    sums: Tensor | None = None,
) -> Tensor:
    """Filter values and squares of the cells with ``P_y``; with ``sums``, fill in the centre too."""
    moments, cells, centre, rows = statistics
    pairs = torch.empty_like(moments)
    _launch(
        kernels.weigh, plan.blocks(True, COLUMNS), *_sources(x, cells, plan), sums, centre,
        positions, rows, None, pairs, plan.A, plan.E, plan.prefix, plan.chunk, plan.chunks,
        **plan.model, OF_ROWS=True, ROWS=ROWS, STEP=STEP, COLUMNS=COLUMNS, PARTS=PARTS,
    )  # fmt: skip
    return pairs


@torch.library.custom_op(
    'mmlape::dtn_gpu',
    mutates_args=(),
    schema=f'({_TENSORS}, Tensor bias, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def dtn(
    x: Tensor,
    positions: Tensor,
    mean_omega: Tensor | None,
    var_omega: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    sizes: Sequence[int],
    eps: float,
    stabilize: bool,
    mean_ratio: float,
    var_ratio: float,
) -> tuple[Tensor, ...]:
    """Compute :class:`mmlape.norm.DTN` with learned positions and without a mask. First-order gradients only.

    Statistics are in float32 whatever the dtypes are; the same input gives the same bits.

    Args:
        x: ``(B, P + H * W, C)``, float32, float16 or bfloat16; the others may have another of these dtypes.
        positions: ``(G, 3)``, the learned numbers of each head's map.
        mean_omega, var_omega: ``(G,)``, of which the sigmoid is a head's share of the token's own mean and variance;
            None for the numbers ``mean_ratio``, ``var_ratio``.
        weight, bias: ``(C,)``.
        sizes: H, W, tokens per side of a cell, P, and G.
        eps: Added to variances, and to the mean square of a head.
        stabilize: Heads are divided by their root mean square first, and the token's variance is unbiased.
        mean_ratio, var_ratio: Fixed shares.

    Returns:
        The result in the shape and dtype of x, and statistics for the backward pass.

    Raises:
        ValueError: If shapes or devices do not fit.
    """
    parameters = positions, mean_omega, var_omega, weight, bias
    x, positions, mean_omega, var_omega, weight, bias = _dense(x, parameters, sizes)
    plan = _Plan.of(x, sizes, stabilize)
    y, statistics = torch.empty_like(x), _statistics(x, sizes)
    if not x.numel():
        return y, *statistics
    moments, _, centre, rows = statistics
    with _on_device(x):
        sums = _describe(x, positions, statistics, plan, eps)
        pairs = _first_pairs(x, positions, statistics, plan, sums)
        _launch(
            kernels.weigh, plan.blocks(False, COLUMNS), *[None] * 5, positions, rows, pairs,
            moments, plan.A, plan.E, plan.prefix, plan.chunk, plan.chunks, **plan.model,
            OF_ROWS=False, ROWS=ROWS, STEP=STEP, COLUMNS=COLUMNS, PARTS=PARTS,
        )  # fmt: skip
        _launch(
            kernels.normalise, (plan.token_blocks(plan.tile['TOKENS']),), x, moments, centre,
            mean_omega, var_omega, weight, bias, y, mean_ratio, var_ratio, *plan.of_tokens(), eps,
            **plan.model, **plan.tile,
        )  # fmt: skip
    return y, *statistics


@torch.library.custom_op(
    'mmlape::dtn_gpu_backward',
    mutates_args=(),
    schema=f'(Tensor grad, {_TENSORS}, Tensor[] statistics, {_OPTIONS}) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def _backward(
    grad: Tensor,
    x: Tensor,
    positions: Tensor,
    mean_omega: Tensor | None,
    var_omega: Tensor | None,
    weight: Tensor,
    statistics: Sequence[Tensor],
    sizes: Sequence[int],
    eps: float,
    stabilize: bool,
    mean_ratio: float,
    var_ratio: float,
) -> tuple[Tensor, ...]:
    """Gradients of x, positions, both omegas (empty where there is none), weight and bias."""
    parameters = positions, mean_omega, var_omega, weight
    x, positions, mean_omega, var_omega, weight = _dense(x, parameters, sizes)
    plan, grad = _Plan.of(x, sizes, stabilize), grad.contiguous()
    found = _gradients_like(x, positions, mean_omega, var_omega, weight)
    if not x.numel():
        return tuple(map(torch.zeros_like, found))
    moments, cells, centre, _ = statistics
    heads, channels = plan.model['G'], x.shape[2]
    d_moments = torch.empty_like(moments)
    sums = centre.new_empty(plan.B * plan.chunks, 2 * channels + 2 * heads)
    shares = mean_ratio, var_ratio
    with _on_device(x):
        _launch(
            gradient_kernels.to_statistics, (plan.B * plan.chunks,), x, grad, moments, centre,
            mean_omega, var_omega, weight, d_moments, sums, *shares, *plan.of_tokens(), plan.chunk,
            plan.chunks, eps, **plan.model, **plan.cut,
        )  # fmt: skip
        d_cells, slopes, slots_of_x = _through_maps(x, positions, statistics, d_moments, plan)
        # A whole tile would leave too few registers.
        half = dict(plan.tile, TOKENS=max(plan.tile['TOKENS'] // 2, 1))
        of_parameters = _blocks(2 * channels + 2 * heads, 32) + heads
        _launch(
            gradient_kernels.to_inputs, (of_parameters + plan.token_blocks(half['TOKENS']),), x, grad,
            moments, _sources(x, cells, plan)[1], centre, mean_omega, var_omega, weight, d_cells,
            sums, slopes, *found, *shares, *plan.of_tokens(), len(sums), slopes.shape[1],
            slots_of_x, eps, **plan.model, **half, ROWS=32, COLUMNS=32,
        )  # fmt: skip
    return tuple(found)


def _through_maps(
    x: Tensor, positions: Tensor, statistics: Sequence[Tensor], d_moments: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, int]:
    """Gradients of cells, in the memory of ``d_moments``; slopes, and how many of a head's are of ``P_x``."""
    _, cells, centre, rows = statistics
    pairs, d_pairs = _first_pairs(x, positions, statistics, plan), torch.empty_like(d_moments)
    grids = [plan.blocks(of_rows, GRADIENT_COLUMNS) for of_rows in (False, True)]
    slots_of_x, slots_of_y = (plan.B * across * along for _, across, along in grids)
    slopes = centre.new_empty(plan.model['G'], slots_of_x + slots_of_y, 2)
    block = dict(plan.model, ROWS=ROWS, STEP=STEP, COLUMNS=GRADIENT_COLUMNS)
    _launch(
        gradient_kernels.weigh_gradients, grids[0], *[None] * 4, positions, rows, pairs, d_moments,
        d_pairs, slopes, plan.A, plan.E, plan.prefix, 0, slopes.shape[1], OF_ROWS=False, **block,
    )  # fmt: skip
    d_cells = d_moments  # reuse memory that is not needed any more
    _launch(
        gradient_kernels.weigh_gradients, grids[1], *_sources(x, cells, plan), centre, positions,
        rows, None, d_pairs, d_cells, slopes, plan.A, plan.E, plan.prefix, slots_of_x,
        slopes.shape[1], OF_ROWS=True, **block,
    )  # fmt: skip
    return d_cells, slopes, slots_of_x


def _gradients_like(
    x: Tensor,
    positions: Tensor,
    mean_omega: Tensor | None,
    var_omega: Tensor | None,
    weight: Tensor,
) -> list[Tensor]:
    omegas = (
        weight.new_empty(0) if omega is None else omega.new_empty(omega.shape)
        for omega in (mean_omega, var_omega)
    )
    tensors = (each.new_empty(each.shape) for each in (x, positions))
    return [*tensors, *omegas, weight.new_empty(weight.shape), weight.new_empty(weight.shape)]


@dtn.register_fake
def _(x: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return x.new_empty(x.shape), *_statistics(x, inputs[5])


@_backward.register_fake
def _(_grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(_gradients_like(*inputs[:5]))


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    *tensors, _bias = inputs[:6]
    ctx.options = inputs[6:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output[1:])


def _gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, moments, cells, centre, rows = ctx.saved_tensors
    statistics = [moments, cells, centre, rows]
    found = list(_backward(grad, *tensors, statistics, *ctx.options))
    for at in (2, 3):
        if tensors[at] is None:
            found[at] = None
    return *found, *[None] * len(ctx.options)


def _refuse(*_: Any) -> None:
    raise RuntimeError(
        'DTN by mmlape.gpu.optimize has no second derivatives; run the model without it for them'
    )


dtn.register_autograd(_gradients, setup_context=_save)
_backward.register_autograd(_refuse)
