"""Triton kernels of DTN's backward pass; see :mod:`mmlape.gpu.dtn_kernels` for sizes and arrays.

What is called ``d_a`` is the gradient of a. Beside those arrays:

* ``d_moments``, ``d_pairs`` and ``d_cells``: pairs, the gradients of what P_x gives, of what P_y gives, and of values
  and squares of cells.
* ``sums`` ``(B * chunks, 2 C + 2 G)``: each program's sums over tokens for weight, bias and both ratios.
* ``slopes`` ``(G, slots, 2)``: each program's sums for the numbers that make a head's maps, those of P_x first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .dtn_kernels import SIZES, _cell_values, _parameters, _score, _standardise


@triton.jit
def _direct(grad, weight, b, token, valid, rstd, normed, num_tokens, G: tl.constexpr,
            D: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Gradients of the result, and of its numerator and variance alone."""
    g, d = tl.arange(0, HEADS)[None, :, None], tl.arange(0, DEPTH)[None, None, :]
    channel, inside = g * D + d, valid & (g < G) & (d < D)
    d_y = tl.load(grad + (b * num_tokens + token) * (G * D) + channel, inside, 0.0).to(tl.float32)
    factor = tl.load(weight + channel, (g < G) & (d < D), 0.0).to(tl.float32)
    d_z = d_y * factor * rstd
    return d_y, d_z, -0.5 * d_z * normed * rstd


@triton.jit
def _tokens(cell, i, last, H, W, E, POOL: tl.constexpr):
    """Tokens, and which are valid: of cells of one token from ``cell`` up to ``last``, or of one larger cell."""
    if POOL == 1:
        token, valid = cell + i, cell + i < last
    else:
        down, across = cell // E * POOL + i // POOL, cell % E * POOL + i % POOL
        token, valid = down * W + across, (i < POOL * POOL) & (down < H) & (across < W)
    return token, valid


@triton.jit
def _by_head(values):
    """Sum over tokens and the channels of a head, ``(HEADS, 1)``."""
    return tl.sum(tl.sum(values, axis=0), axis=1, keep_dims=True)


@triton.jit
def _store_pair(to, first, second, mask, D: tl.constexpr):
    tl.store(to, first, mask)
    tl.store(to + D, second, mask)


@triton.jit
def _store_sums(sums, of_weight, of_bias, of_mean, of_var, G: tl.constexpr, D: tl.constexpr,
                HEADS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Store the sums of a program."""
    g, d = tl.arange(0, HEADS)[:, None], tl.arange(0, DEPTH)[None, :]
    sums += tl.program_id(0).to(tl.int64) * (2 * G * D + 2 * G)
    tl.store(sums + g * D + d, of_weight, (g < G) & (d < D))
    tl.store(sums + G * D + g * D + d, of_bias, (g < G) & (d < D))
    sums += 2 * G * D
    tl.store(sums + g, of_mean, g < G)
    tl.store(sums + G + g, of_var, g < G)


@triton.jit(do_not_specialize=SIZES)
def to_statistics(
    x, grad, moments, centre, mean_omega, var_omega, weight, d_moments, sums, mean_ratio, var_ratio,
    H, W, E, prefix, num_cells, chunk, num_chunks, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """``d_moments`` of a chunk of cells, and ``sums`` over its tokens; prefix tokens are in the first one's."""
    b, part = (tl.program_id(0) // num_chunks).to(tl.int64), tl.program_id(0) % num_chunks
    num_tokens = prefix + H * W
    g, d = tl.arange(0, HEADS)[:, None], tl.arange(0, DEPTH)[None, :]
    known = (g < G) & (d < D)
    of_weight, of_bias = tl.zeros((HEADS, DEPTH), tl.float32), tl.zeros((HEADS, DEPTH), tl.float32)
    of_mean, of_var = tl.zeros((HEADS, 1), tl.float32), tl.zeros((HEADS, 1), tl.float32)
    d_moments += b * (num_cells * 2 * G * D) + g * (num_cells * 2 * D) + d
    # Each step takes TOKENS cells of one token, or TOKENS tokens of one cell.
    cells: tl.constexpr = TOKENS if POOL == 1 else 1
    last = tl.minimum(part * chunk + chunk, num_cells)
    for cell in range(part * chunk, last, cells):
        to_first, to_second = tl.zeros_like(of_bias), tl.zeros_like(of_bias)
        for start in range(0, 1 if POOL == 1 else POOL * POOL, TOKENS):
            i = (start + tl.arange(0, TOKENS))[:, None, None]
            token, valid = _tokens(cell, i, last, H, W, E, POOL)
            (
                _, _, _, own_mean, own_var, first, inter_mean, inter_var, own_of_mean, own_of_var,
                rstd, normed,
            ) = _standardise(
                x, moments, centre, mean_omega, var_omega, b, prefix + token, valid, mean_ratio,
                var_ratio, H, W, E, prefix, num_cells, eps, G, D, POOL, STABILIZE, HEADS, DEPTH,
            )  # fmt: skip
            d_y, d_z, d_var = _direct(
                grad, weight, b, prefix + token, valid, rstd, normed, num_tokens, G, D, HEADS, DEPTH
            )
            of_weight += tl.sum(d_y * normed, axis=0)
            of_bias += tl.sum(d_y, axis=0)
            of_mean += _by_head(d_z * (inter_mean - own_mean))
            of_var += _by_head(d_var * (own_var - tl.maximum(inter_var, 0.0)))
            d_second = tl.where(inter_var < 0, 0.0, (1 - own_of_var) * d_var)
            d_first = (own_of_mean - 1) * d_z - 2 * first * d_second
            if POOL == 1:
                to = d_moments[None] + token * (2 * D)
                _store_pair(to, d_first, d_second, valid & known[None], D)
            else:
                to_first += tl.sum(d_first, axis=0)
                to_second += tl.sum(d_second, axis=0)
        if POOL > 1:
            _store_pair(d_moments + cell * (2 * D), to_first, to_second, known, D)
    for start in range(0, tl.where(part == 0, prefix, 0), TOKENS):
        token = (start + tl.arange(0, TOKENS))[:, None, None]
        _, _, _, _, _, _, _, _, _, _, rstd, normed = _standardise(
            x, moments, centre, mean_omega, var_omega, b, token, token < prefix, mean_ratio,
            var_ratio, H, W, E, prefix, num_cells, eps, G, D, POOL, STABILIZE, HEADS, DEPTH,
        )  # fmt: skip
        d_y, _, _ = _direct(
            grad, weight, b, token, token < prefix, rstd, normed, num_tokens, G, D, HEADS, DEPTH
        )
        of_weight += tl.sum(d_y * normed, axis=0)
        of_bias += tl.sum(d_y, axis=0)
    _store_sums(sums, of_weight, of_bias, of_mean, of_var, G, D, HEADS, DEPTH)


@triton.jit(do_not_specialize=SIZES)
def weigh_gradients(
    x, cells, scales, centre, positions, rows, pairs, grads, out, slopes, A, E, prefix, before,
    num_slots,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    OF_ROWS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of what :func:`weigh` reads, ``out``, from those of its result, ``grads``: the transposed product.

    And of the two numbers that make the map: ``slopes`` ``(G, slots, 2)``, a slot per program after those ``before``.
    The gradient of a score is ``P (dP - sum over j of P dP)``. Multiplied by the offset and summed, that is the product
    with ``P (offset - mean offset)`` instead of P, times the gradient of the result: dP is not made either.
    """
    b, g = (tl.program_id(0) // G).to(tl.int64), tl.program_id(0) % G
    linear, square = _parameters(positions, g, OF_ROWS)
    length, others, step, across = E, A, 1, E
    if OF_ROWS:
        length, others, step, across = A, E, E, 1
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    other, k = n // (2 * D), n % (2 * D)
    j = tl.program_id(2) * ROWS + tl.arange(0, ROWS)[:, None]
    image = tl.program_id(0).to(tl.int64) * A * E * 2 * D
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    by_offset, by_square = tl.zeros_like(found), tl.zeros_like(found)
    for start in range(0, length, STEP):
        i = start + tl.arange(0, STEP)
        offset = (i[None, :] - j).to(tl.float32)
        row = rows + (g * (A + E) + (0 if OF_ROWS else A) + i[None, :]) * 4
        is_row = i[None, :] < length
        most, inverse = tl.load(row, is_row, 0.0), tl.load(row + 1, is_row, 0.0)
        mean, spread = tl.load(row + 2, is_row, 0.0), tl.load(row + 3, is_row, 0.0)
        score = _score(offset, linear, square) - most
        weight = tl.exp(tl.where(is_row & (j < length), score, -float('inf'))) * inverse
        cell, valid = i[:, None] * step + other * across, (i[:, None] < length) & (other < others)
        grad = tl.load(grads + image + cell * (2 * D) + k, valid, 0.0)
        found = tl.dot(weight, grad, found, input_precision='ieee')
        by_offset = tl.dot(weight * (offset - mean), grad, by_offset, input_precision='ieee')
        centred = weight * (offset * offset - spread)
        by_square = tl.dot(centred, grad, by_square, input_precision='ieee')
    cell, valid = j * step + other * across, (j < length) & (other < others)
    tl.store(out + image + cell * (2 * D) + k, found, valid)
    if OF_ROWS:
        middle = tl.load(centre + (b * G + g) * D + k % D)
        value = _cell_values(
            x, cells, scales, middle, b, g, cell, k, valid, prefix, A * E, G, D, POOL, STABILIZE
        )
    else:
        value = tl.load(pairs + image + cell * (2 * D) + k, valid, 0.0)
    slot = before + (b * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2)
    to = slopes + (g * num_slots + slot + tl.program_id(2)) * 2
    tl.store(to, tl.sum(tl.sum(by_offset * value, axis=1), axis=0))
    tl.store(to + 1, tl.sum(tl.sum(by_square * value, axis=1), axis=0))


@triton.jit
def _to_tokens(
    program, x, grad, moments, cells, centre, mean_omega, var_omega, weight, d_cells, d_x,
    mean_ratio, var_ratio, H, W, E, prefix, num_cells, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The gradient of tokens, of their statistics (sums over their channels) and of their cells."""
    C: tl.constexpr = G * D
    num_tokens = prefix + H * W
    blocks = tl.cdiv(num_tokens, TOKENS)
    b = (program // blocks).to(tl.int64)
    token = (program % blocks * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    valid, is_cell = token < num_tokens, token >= prefix
    g, d = tl.arange(0, HEADS)[None, :, None], tl.arange(0, DEPTH)[None, None, :]
    channel, inside = g * D + d, valid & (g < G) & (d < D)
    z, scale, freedom, own_mean, _, _, _, _, own_of_mean, own_of_var, rstd, normed = _standardise(
        x, moments, centre, mean_omega, var_omega, b, token, valid, mean_ratio, var_ratio, H, W, E,
        prefix, num_cells, eps, G, D, POOL, STABILIZE, HEADS, DEPTH,
    )  # fmt: skip
    _, d_z, d_var = _direct(
        grad, weight, b, token, valid, rstd, normed, num_tokens, G, D, HEADS, DEPTH
    )
    of_mean = tl.sum(tl.sum(own_of_mean * d_z, axis=2, keep_dims=True), axis=1, keep_dims=True)
    of_var = tl.sum(tl.sum(own_of_var * d_var, axis=2, keep_dims=True), axis=1, keep_dims=True)
    d_z += 2 / freedom * of_var * (z - own_mean) - of_mean / C
    row, column = (token - prefix) // W // POOL, (token - prefix) % W // POOL
    cell, of_cell = row * E + column, inside & is_cell
    if POOL == 1:
        value, share = z, 1.0
    else:
        value = tl.load(cells + (b * num_cells + cell) * C + channel, of_cell, 0.0)
        count = tl.minimum(H - row * POOL, POOL) * tl.minimum(W - column * POOL, POOL)
        share = 1.0 / tl.where(valid & is_cell, count, 1)
    value -= tl.load(centre + b * C + channel, of_cell, 0.0)
    pair = d_cells + ((b * G + g) * num_cells + cell) * (2 * D) + d
    d_cell = tl.load(pair, of_cell, 0.0) + 2 * value * tl.load(pair + D, of_cell, 0.0)
    d_z = tl.where(inside, d_z + d_cell * share, 0.0)
    if STABILIZE:
        along = tl.sum(d_z * z, axis=2, keep_dims=True) / D
        d_z = tl.where(is_cell, scale * (d_z - z * along), d_z)
    tl.store(d_x + (b * num_tokens + token) * C + channel, d_z, inside)


@triton.jit
def _to_parameters(
    program, sums, slopes, mean_omega, var_omega, d_positions, d_mean_omega, d_var_omega, d_weight, d_bias,
    num_sums, num_slots, slots_of_x,
    G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums: a program for each block of columns of ``sums``, and one for each head's slopes."""
    C: tl.constexpr = G * D
    blocks: tl.constexpr = (2 * C + 2 * G + COLUMNS - 1) // COLUMNS
    if program < blocks:
        c = program * COLUMNS + tl.arange(0, COLUMNS)
        found = tl.zeros((COLUMNS,), tl.float32)
        for start in range(0, num_sums, ROWS):
            row = (start + tl.arange(0, ROWS)[:, None]).to(tl.int64)
            valid = (row < num_sums) & (c[None] < 2 * C + 2 * G)
            found += tl.sum(tl.load(sums + row * (2 * C + 2 * G) + c[None], valid, 0.0), axis=0)
        tl.store(d_weight + c, found, c < C)
        tl.store(d_bias + c - C, found, (c >= C) & (c < 2 * C))
        if mean_omega is not None:
            g = c - 2 * C
            ratio = tl.sigmoid(tl.load(mean_omega + g, (g >= 0) & (g < G), 0.0).to(tl.float32))
            tl.store(d_mean_omega + g, found * ratio * (1 - ratio), (g >= 0) & (g < G))
        if var_omega is not None:
            g = c - 2 * C - G
            ratio = tl.sigmoid(tl.load(var_omega + g, (g >= 0) & (g < G), 0.0).to(tl.float32))
            tl.store(d_var_omega + g, found * ratio * (1 - ratio), (g >= 0) & (g < G))
    else:
        head = program - blocks
        of_x = tl.zeros((ROWS * COLUMNS,), tl.float32)
        of_y, of_both = tl.zeros_like(of_x), tl.zeros_like(of_x)
        for start in range(0, num_slots, ROWS * COLUMNS):
            slot = start + tl.arange(0, ROWS * COLUMNS)
            at = slopes + (head * num_slots + slot) * 2
            linear = tl.load(at, slot < num_slots, 0.0)
            of_x += tl.where(slot < slots_of_x, linear, 0.0)
            of_y += tl.where(slot < slots_of_x, 0.0, linear)
            of_both += tl.load(at + 1, slot < num_slots, 0.0)
        tl.store(d_positions + head * 3, tl.sum(of_x, axis=0))
        tl.store(d_positions + head * 3 + 1, tl.sum(of_y, axis=0))
        tl.store(d_positions + head * 3 + 2, tl.sum(of_both, axis=0))


@triton.jit(do_not_specialize=SIZES)
def to_inputs(
    x, grad, moments, cells, centre, mean_omega, var_omega, weight, d_cells, sums, slopes, d_x,
    d_positions, d_mean_omega, d_var_omega, d_weight, d_bias, mean_ratio, var_ratio,
    H, W, E, prefix, num_cells, num_sums, num_slots, slots_of_x, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of parameters by the first programs, of tokens by the others."""
    program = tl.program_id(0)
    of_parameters: tl.constexpr = (2 * G * D + 2 * G + COLUMNS - 1) // COLUMNS + G
    if program < of_parameters:
        _to_parameters(
            program, sums, slopes, mean_omega, var_omega, d_positions, d_mean_omega, d_var_omega,
            d_weight, d_bias, num_sums, num_slots, slots_of_x, G, D, ROWS, COLUMNS,
        )  # fmt: skip
    else:
        _to_tokens(
            program - of_parameters, x, grad, moments, cells, centre, mean_omega, var_omega, weight,
            d_cells, d_x, mean_ratio, var_ratio, H, W, E, prefix, num_cells, eps, G, D, POOL,
            STABILIZE, HEADS, DEPTH, TOKENS,
        )  # fmt: skip
