"""DTN in all of its options, and the dense map of the paper that it must equal."""

import math

import torch
from torch import nn

OPTIONS = [
    dict(),
    dict(stabilize=False),
    dict(pool=2),
    dict(pool=3, stabilize=False),
    dict(variance_only=True),
    dict(ratio_mean=0.25, ratio_var=0.75),
    dict(positions='uniform'),
    dict(positions='banded', band=3, stabilize=False),
    dict(position_init='random'),
]


def randomised(norm):
    """Initial values hide errors."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, std=0.5)
    return norm


def dense_scores(norm, grid):
    """Eq. 6 for all pairs of cells, ``(G, T, T)``, or 0 within a band (Fig. 4 b); its softmax is the map P."""
    y, x = torch.meshgrid(*(torch.arange(side) for side in grid), indexing='ij')
    dx, dy = (axis.flatten()[:, None] - axis.flatten() for axis in (x, y))
    if not list(norm.positions.parameters()):
        far = torch.maximum(dx.abs(), dy.abs()) > norm.positions.band // 2
        scores = norm.weight.new_zeros(far.shape).masked_fill(far, -math.inf)
        return scores.expand(norm.num_heads, -1, -1)
    offsets = torch.stack([dx, dy, dx**2 + dy**2], dim=-1).to(norm.weight)
    return (offsets @ norm.positions.weight.T).permute(2, 0, 1)


def dense_dtn(norm, tokens, grid, mask=None):
    """Eq. 4 and 5 with one T x T softmax per image, head and cell, over the cells with present tokens."""
    pool, (height, width) = norm.pool, grid
    rows, columns = math.ceil(height / pool), math.ceil(width / pool)
    cell_of = torch.tensor(
        [(y // pool) * columns + x // pool for y in range(height) for x in range(width)]
    )
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
    outs = []
    for image, present in zip(tokens.unflatten(2, (norm.num_heads, -1)), mask, strict=True):
        if norm.stabilize:
            image = image * (image.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt()
        own_var = image.flatten(1).var(dim=1, correction=int(norm.stabilize))
        own_mean = image.flatten(1).mean(dim=1)
        members = [present & (cell_of == cell) for cell in range(rows * columns)]
        cells = torch.stack([image[m].mean(0) if m.any() else image[0] * 0 for m in members])
        there = torch.stack([m.any() for m in members])
        maps = dense_scores(norm, (rows, columns)).masked_fill(~there, -math.inf).softmax(dim=-1)
        mean = torch.einsum('gij,jgd->igd', maps, cells)
        var = torch.einsum('gij,jgd->igd', maps, cells**2) - mean**2
        r_mean, r_var = norm.ratio_mean(image), norm.ratio_var(image)
        mean = r_mean * own_mean[:, None, None] + (1 - r_mean) * mean[cell_of]
        var = r_var * own_var[:, None, None] + (1 - r_var) * var[cell_of]
        outs.append(((image - mean) / (var + norm.eps).sqrt()).flatten(1))
    return torch.stack(outs) * norm.weight + norm.bias


def random_mask(batch, cells, count):
    """As many cells of each image, in other places."""
    mask = torch.zeros(batch, cells, dtype=torch.bool)
    for row in mask:
        row[torch.randperm(cells)[:count]] = True
    return mask
