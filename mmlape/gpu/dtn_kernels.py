"""DTN's normalisation as Triton kernels; :mod:`mmlape.gpu.dtn` launches them.

B images of P prefix tokens and H x W tokens, A x E cells of POOL x POOL tokens, G heads, D channels per head, C = GD

Statistics are float32. Arrays in memory, beside tokens ``(B, P + H * W, C)`` of any floating type:

* ``rows`` ``(G, A + E, 4)``: of each row of the softmaxes P_y and P_x, the largest score, 1 / sum of exp, and the mean
  offset and squared offset. With the three numbers of a head, they give each weight: no map is stored.
* ``cells`` ``(B, A * E, C)``: means of (stabilised) tokens, where POOL > 1; else ``scales`` ``(B, H * W, G)``, by which
  each head of a token is multiplied.
* pairs ``(B, G, A, E, 2, D)``: of the values and squares of cells, counted from ``centre`` ``(B, C)``, which is near
  their mean, so that a variance loses no digits.

Every sum is of one program, or of parts that one program adds up in a fixed order: results are deterministic.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Arguments with which a kernel is not compiled again: it serves every grid.
SIZES = (
    *('H', 'W', 'A', 'E', 'prefix', 'num_cells', 'chunk', 'num_chunks'),
    *('before', 'num_sums', 'num_slots', 'slots_of_x'),
)


@triton.jit
def _score(offset, linear, square):
    """Eq. 6 along one axis, of offsets from cell j to cell i."""
    return offset * (linear + square * offset)


@triton.jit
def _parameters(positions, g, of_rows):
    """The factors of the offset and its square: ``positions`` ``(G, 3)`` holds (a_x, a_y, a_2)."""
    linear = tl.load(positions + g * 3 + tl.where(of_rows, 1, 0)).to(tl.float32)
    return linear, tl.load(positions + g * 3 + 2).to(tl.float32)


@triton.jit
def _ratio(omega, value, g, is_head, is_cell):
    """The own share of each head; 1 for prefix tokens."""
    if omega is None:
        ratio = tl.where(is_head, value, 0.0)
    else:
        ratio = tl.sigmoid(tl.load(omega + g, is_head, 0.0).to(tl.float32))
    return tl.where(is_cell, ratio, 1.0)


@triton.jit
def _describe_cells(
    program, x, cells, scales, sums, H, W, E, prefix, num_cells, chunk, num_chunks, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """``cells`` or ``scales`` of a chunk of cells, and the sum of its cells, ``sums`` ``(B, chunks, C)``."""
    b, part = (program // num_chunks).to(tl.int64), program % num_chunks
    g, d = tl.arange(0, HEADS)[:, None], tl.arange(0, DEPTH)[None, :]
    channel, known = g * D + d, (g < G) & (d < D)
    x += (b * (prefix + H * W) + prefix) * (G * D)
    total = tl.zeros((HEADS, DEPTH), tl.float32)
    first, last = part * chunk, tl.minimum(part * chunk + chunk, num_cells)
    if POOL == 1:
        for start in range(first, last, TOKENS):
            token = (start + tl.arange(0, TOKENS))[:, None, None]
            valid = token < last
            z = tl.load(x + token * (G * D) + channel[None], valid & known[None], 0.0).to(
                tl.float32
            )
            if STABILIZE:
                scale = tl.rsqrt(tl.sum(z * z, axis=2, keep_dims=True) / D + eps)
                tl.store(
                    scales + (b * num_cells + token) * G + g[None], scale, valid & (g[None] < G)
                )
                z *= scale
            total += tl.sum(z, axis=0)
    else:
        for cell in range(first, last):
            row, column = cell // E * POOL, cell % E * POOL
            of_cell = tl.zeros((HEADS, DEPTH), tl.float32)
            for start in range(0, POOL * POOL, TOKENS):
                i = (start + tl.arange(0, TOKENS))[:, None, None]
                across, down = column + i % POOL, row + i // POOL
                valid = (i < POOL * POOL) & (down < H) & (across < W) & known[None]
                z = tl.load(x + (down * W + across) * (G * D) + channel[None], valid, 0.0)
                z = z.to(tl.float32)
                if STABILIZE:
                    z *= tl.rsqrt(tl.sum(z * z, axis=2, keep_dims=True) / D + eps)
                of_cell += tl.sum(z, axis=0)
            of_cell /= tl.minimum(H - row, POOL) * tl.minimum(W - column, POOL)
            tl.store(cells + (b * num_cells + cell) * (G * D) + channel, of_cell, known)
            total += of_cell
    tl.store(sums + program.to(tl.int64) * (G * D) + channel, total, known)


@triton.jit
def _describe_rows(program, positions, rows, A, E, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``rows``, a block of them."""
    of_y, blocks = tl.cdiv(A, ROWS), tl.cdiv(A, ROWS) + tl.cdiv(E, ROWS)
    g, block = program // blocks, program % blocks
    of_rows = block < of_y
    linear, square = _parameters(positions, g, of_rows)
    length, before = tl.where(of_rows, A, E), tl.where(of_rows, 0, A)
    i = (block - tl.where(of_rows, 0, of_y)) * ROWS + tl.arange(0, ROWS)
    most = tl.full((ROWS,), -float('inf'), tl.float32)
    total, mean, spread = tl.zeros_like(most), tl.zeros_like(most), tl.zeros_like(most)
    for start in range(0, length, COLUMNS):
        j = start + tl.arange(0, COLUMNS)[None, :]
        offset = (i[:, None] - j).to(tl.float32)
        score = tl.where(j < length, _score(offset, linear, square), -float('inf'))
        now = tl.maximum(most, tl.max(score, axis=1))
        weight, shrink = tl.exp(score - now[:, None]), tl.exp(most - now)
        total = total * shrink + tl.sum(weight, axis=1)
        mean = mean * shrink + tl.sum(weight * offset, axis=1)
        spread = spread * shrink + tl.sum(weight * offset * offset, axis=1)
        most = now
    to = rows + (g * (A + E) + before + i) * 4
    is_row = i < length
    tl.store(to, most, is_row)
    tl.store(to + 1, 1 / total, is_row)
    tl.store(to + 2, mean / total, is_row)
    tl.store(to + 3, spread / total, is_row)


@triton.jit(do_not_specialize=SIZES)
def describe(
    x, positions, cells, scales, sums, rows, H, W, E, prefix, num_cells, chunk, num_chunks, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """``rows`` by the first programs; cells by the others, which do not need them."""
    program, A = tl.program_id(0), num_cells // E
    of_rows = G * (tl.cdiv(A, ROWS) + tl.cdiv(E, ROWS))
    if program < of_rows:
        _describe_rows(program, positions, rows, A, E, ROWS, COLUMNS)
    else:
        _describe_cells(
            program - of_rows, x, cells, scales, sums, H, W, E, prefix, num_cells, chunk, num_chunks,
            eps, G, D, POOL, STABILIZE, HEADS, DEPTH, TOKENS,
        )  # fmt: skip


@triton.jit
def _middle(sums, b, channel, num_cells, chunk, num_chunks, C: tl.constexpr, PARTS: tl.constexpr):
    """The mean of up to PARTS chunks of cells, spread over the image, of channels ``(1, n)``."""
    part = tl.arange(0, PARTS)[:, None] * tl.cdiv(num_chunks, PARTS)
    known = part < num_chunks
    total = tl.load(sums + (b * num_chunks + part) * C + channel, known, 0.0)
    count = tl.where(known, tl.minimum(num_cells - part * chunk, chunk), 0)
    return tl.sum(total, axis=0, keep_dims=True) / tl.sum(count, axis=0, keep_dims=True)


@triton.jit
def _cell_values(
    x, cells, scales, middle, b, g, cell, k, valid, prefix, num_cells,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
):  # fmt: skip
    """Values (k < D) and squares (k >= D) of cells, from the centre's value ``middle`` of each column."""
    C: tl.constexpr = G * D
    channel = g * D + k % D
    if POOL == 1:
        base = x + (b * (prefix + num_cells) + prefix) * C
        value = tl.load(base + cell * C + channel, valid, 0.0).to(tl.float32)
        if STABILIZE:
            value *= tl.load(scales + (b * num_cells + cell) * G + g, valid, 0.0)
    else:
        value = tl.load(cells + (b * num_cells + cell) * C + channel, valid, 0.0)
    value -= middle
    return tl.where(valid, tl.where(k < D, value, value * value), 0.0)


@triton.jit(do_not_specialize=SIZES)
def weigh(
    x, cells, scales, sums, centre, positions, rows, pairs, out, A, E, prefix, chunk, num_chunks,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    OF_ROWS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """``P_y`` (OF_ROWS) times values and squares of cells, or ``P_x`` times ``pairs``; both give pairs, ``out``.

    The first also makes ``centre``, where there are ``sums`` to make it of.
    """
    b, g = (tl.program_id(0) // G).to(tl.int64), tl.program_id(0) % G
    linear, square = _parameters(positions, g, OF_ROWS)
    length, others, step, across = E, A, 1, E
    if OF_ROWS:
        length, others, step, across = A, E, E, 1
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    other, k = n // (2 * D), n % (2 * D)
    i = tl.program_id(2) * ROWS + tl.arange(0, ROWS)[:, None]
    row = rows + (g * (A + E) + (0 if OF_ROWS else A) + i) * 4
    most, inverse = tl.load(row, i < length, 0.0), tl.load(row + 1, i < length, 0.0)
    image = tl.program_id(0).to(tl.int64) * A * E * 2 * D
    if OF_ROWS:
        C: tl.constexpr = G * D
        to = centre + b * C + g * D + k % D
        if sums is None:
            middle = tl.load(to)
        else:
            middle = _middle(sums, b, g * D + k % D, A * E, chunk, num_chunks, C, PARTS)
            if tl.program_id(2) == 0:
                tl.store(to, middle, n < D)
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, length, STEP):
        j = start + tl.arange(0, STEP)
        offset = (i - j[None, :]).to(tl.float32)
        score = _score(offset, linear, square) - most
        is_pair = (i < length) & (j[None, :] < length)
        weight = tl.exp(tl.where(is_pair, score, -float('inf'))) * inverse
        cell, valid = j[:, None] * step + other * across, (j[:, None] < length) & (other < others)
        if OF_ROWS:
            value = _cell_values(
                x, cells, scales, middle, b, g, cell, k, valid, prefix, A * E, G, D, POOL, STABILIZE
            )
        else:
            value = tl.load(pairs + image + cell * (2 * D) + k, valid, 0.0)
        found = tl.dot(weight, value, found, input_precision='ieee')
    cell, valid = i * step + other * across, (i < length) & (other < others)
    tl.store(out + image + cell * (2 * D) + k, found, valid)


@triton.jit
def _standardise(
    x, moments, centre, mean_omega, var_omega, b, token, valid, mean_ratio, var_ratio, H, W, E,
    prefix, num_cells, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Eq. 4 and 5 of tokens ``(n, 1, 1)`` without weight and bias, and all that their gradients need."""
    C: tl.constexpr = G * D
    g, d = tl.arange(0, HEADS)[None, :, None], tl.arange(0, DEPTH)[None, None, :]
    channel, inside = g * D + d, valid & (g < G) & (d < D)
    is_cell = token >= prefix
    z = tl.load(x + (b * (prefix + H * W) + token) * C + channel, inside, 0.0).to(tl.float32)
    scale, freedom = tl.full(is_cell.shape, 1.0, tl.float32), tl.full(is_cell.shape, C, tl.float32)
    if STABILIZE:
        rms = tl.rsqrt(tl.sum(z * z, axis=2, keep_dims=True) / D + eps)
        scale = tl.where(is_cell, rms, 1.0)
        z *= scale
        if C > 1:
            freedom = tl.where(is_cell, C - 1.0, freedom)
    own_mean = tl.sum(tl.sum(z, axis=2, keep_dims=True), axis=1, keep_dims=True) / C
    gap = tl.where(inside, z - own_mean, 0.0)
    own_var = tl.sum(tl.sum(gap * gap, axis=2, keep_dims=True), axis=1, keep_dims=True) / freedom
    cell = (token - prefix) // W // POOL * E + (token - prefix) % W // POOL
    of_cell = inside & is_cell
    pair = moments + ((b * G + g) * num_cells + cell) * (2 * D) + d
    first, second = tl.load(pair, of_cell, 0.0), tl.load(pair + D, of_cell, 0.0)
    inter_mean = first + tl.load(centre + b * C + channel, of_cell, 0.0)
    inter_var = second - first * first
    own_of_mean = _ratio(mean_omega, mean_ratio, g, g < G, is_cell)
    own_of_var = _ratio(var_omega, var_ratio, g, g < G, is_cell)
    mean = own_of_mean * own_mean + (1 - own_of_mean) * inter_mean
    var = own_of_var * own_var + (1 - own_of_var) * tl.maximum(inter_var, 0.0)
    rstd = tl.rsqrt(var + eps)
    normed = tl.where(inside, (z - mean) * rstd, 0.0)
    return (
        z, scale, freedom, own_mean, own_var, first, inter_mean, inter_var, own_of_mean, own_of_var,
        rstd, normed,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def normalise(
    x, moments, centre, mean_omega, var_omega, weight, bias, y, mean_ratio, var_ratio, H, W, E,
    prefix, num_cells, eps,
    G: tl.constexpr, D: tl.constexpr, POOL: tl.constexpr, STABILIZE: tl.constexpr,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The result; of prefix tokens, a LayerNorm."""
    num_tokens = prefix + H * W
    blocks = tl.cdiv(num_tokens, TOKENS)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    token = (tl.program_id(0) % blocks * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    g, d = tl.arange(0, HEADS)[None, :, None], tl.arange(0, DEPTH)[None, None, :]
    channel, known = g * D + d, (g < G) & (d < D)
    _, _, _, _, _, _, _, _, _, _, _, normed = _standardise(
        x, moments, centre, mean_omega, var_omega, b, token, token < num_tokens, mean_ratio,
        var_ratio, H, W, E, prefix, num_cells, eps, G, D, POOL, STABILIZE, HEADS, DEPTH,
    )  # fmt: skip
    factor = tl.load(weight + channel, known, 0.0).to(tl.float32)
    shift = tl.load(bias + channel, known, 0.0).to(tl.float32)
    to = y + (b * num_tokens + token) * (G * D) + channel
    tl.store(to, normed * factor + shift, (token < num_tokens) & known)
