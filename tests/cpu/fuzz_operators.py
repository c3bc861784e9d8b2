"""Strided, empty, expanded and infinite inputs for both operators; tests/cpu/test_fuzz_operators.py runs it."""

import random
import sys

import torch

from mmlape.cpu.deformable_sampling import deformable_sampling
from mmlape.cpu.dtn import dtn
from mmlape.layers import sampling_plan
from mmlape.layers.deformable import DeformableSampling
from mmlape.norm.dtn_maps import DTNOptions, PlainDTN, Windows

NUMBERS = (float('nan'), float('inf'), float('-inf'), 1e38, -1e30, 0.0)


def tensor(*shape):
    """Of this shape, in one of many layouts, now and then with a number that breaks sums."""
    way = random.choice(['dense', 'turned', 'gaps', 'expanded', 'offset'])
    if way == 'turned':
        made = torch.randn(shape[::-1], dtype=torch.float64).permute(*reversed(range(len(shape))))
    elif way == 'gaps':
        made = torch.randn([2 * side for side in shape], dtype=torch.float64)[
            (slice(None, None, 2),) * len(shape)
        ]
    elif way == 'expanded':
        made = torch.randn([1, *shape[1:]], dtype=torch.float64).expand(shape)
    elif way == 'offset':
        made = torch.randn([side + 1 for side in shape], dtype=torch.float64)[
            (slice(1, None),) * len(shape)
        ]
    else:
        made = torch.randn(shape, dtype=torch.float64)
    if random.random() < 0.3 and made.numel():
        made = made.clone()
        made[tuple(random.randrange(side) for side in shape)] = random.choice(NUMBERS)
    return made.requires_grad_()


def compare(ours, theirs, leaves, accepted):
    """Outputs and gradients, where both are finite; neither may be finite where the other's output is not."""
    grad = torch.randn(ours.shape, dtype=ours.dtype)
    found = [ours, *torch.autograd.grad(ours, leaves, grad)]
    expected = [theirs, *torch.autograd.grad(theirs, leaves, grad)]
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    if not all(each.isfinite().all() for each in leaves):
        return
    for mine, other in zip(found, expected, strict=True):
        if mine.numel() and other.isfinite().all():
            size = other.abs().max().clamp(min=1)
            assert (mine - other).abs().max() <= accepted * size


def deformable():
    batch, heads, width, points = (
        random.choice(s) for s in ([0, 1, 2], [1, 3], [1, 5, 32], [1, 4])
    )
    shapes = tuple(
        (random.randint(1, 6), random.randint(1, 6)) for _ in range(random.randint(1, 3))
    )
    queries = (random.randint(0, 4), random.randint(1, 4))
    plan = sampling_plan((queries,), shapes, torch.device('cpu'))
    samples = (batch, queries[0] * queries[1], heads, len(shapes), points)
    value = tensor(batch, sum(h * w for h, w in shapes), heads, width)
    offsets, logits = tensor(*samples, 2), tensor(*samples)
    sides = [side for shape in shapes for side in shape]
    ours = deformable_sampling(value, offsets, logits, plan.reference_points, sides)
    if not ours.numel():
        return
    theirs = DeformableSampling()(value, offsets, logits, plan)
    # PyTorch's gradients of what is at the border of a map may fall on its other side.
    compare(ours, theirs, [value, logits], 1e-8)


def normalise():
    batch, heads, width, pool = (
        random.choice(s) for s in ([0, 1, 2], [1, 3], [1, 4, 33], [1, 2, 4])
    )
    grid = (random.randint(1, 60 if random.random() < 0.1 else 9), random.randint(1, 9))
    windows = Windows.of(grid, pool)
    maps = [
        tensor(random.choice([1, heads]), side, side).detach().nan_to_num().softmax(dim=-1)
        for side in windows.cells
    ]
    x = tensor(batch, grid[0] * grid[1], heads, width)
    ratios = [torch.rand(heads, 1, dtype=torch.float64) for _ in range(2)]
    affine = [tensor(heads, width) for _ in range(2)]
    stabilize = random.random() < 0.5
    ours = dtn(x, *maps, *ratios, *affine, windows=(*grid, pool), eps=1e-5, stabilize=stabilize)
    ours.sum().backward()
    finite = all(
        each.isfinite().all() and each.abs().max() < 1e20 for each in (x, *affine) if each.numel()
    )
    if batch and finite:
        theirs = PlainDTN()(x, *maps, *ratios, *affine, DTNOptions(windows, 1e-5, stabilize))
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max().clamp(min=1)


def main(count):
    torch.set_num_threads(2)
    for number in range(count):
        random.seed(number)
        torch.manual_seed(number)
        for run in (deformable, normalise):
            try:
                run()
            except Exception as error:
                raise RuntimeError(f'{run.__name__} with seed {number}') from error
    print('done', count)


if __name__ == '__main__':
    main(int(sys.argv[1]))
