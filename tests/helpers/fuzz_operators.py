"""Random inputs for both operators in C++, beside PyTorch's forms; tests/cpu/test_fuzz_operators.py runs it.

Layouts are dense, transposed, strided, expanded, offset or empty; values may be NaN, infinite or extreme.
"""

import ctypes
import itertools
import random
import sys

import torch

from mmlape.cpu import library
from mmlape.cpu.library import deformable_sampling, dtn
from mmlape.layers import sampling_plan
from mmlape.layers.deformable import DeformableSampling
from mmlape.layout import Layout
from mmlape.norm.dtn_maps import Windows
from mmlape.norm.dtn_plain import DTNOptions, PlainDTN

HUGE = 2.0**127
EXTREME = (float('nan'), float('inf'), float('-inf'), HUGE, -(2.0**100), 1e-42, -0.0)
ACCEPTED = {torch.float32: 1e-2, torch.float64: 1e-8}  # of the largest value


def tensor(*shape, dtype, extreme=0.2):
    """A leaf's values in a random layout, sometimes with one extreme value."""
    way = random.choice(['dense', 'transposed', 'strided', 'expanded', 'offset'])
    if way == 'transposed':
        made = torch.randn(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    elif way == 'strided':
        steps = (slice(None, None, 2),) * len(shape)
        made = torch.randn([2 * side for side in shape], dtype=dtype)[steps]
    elif way == 'expanded':
        axis = random.randrange(len(shape))
        single = [1 if each == axis else side for each, side in enumerate(shape)]
        made = torch.randn(single, dtype=dtype).expand(shape)
    elif way == 'offset':
        made = torch.randn([side + 1 for side in shape], dtype=dtype)[
            (slice(1, None),) * len(shape)
        ]
    else:
        made = torch.randn(shape, dtype=dtype)
    if random.random() < extreme and made.numel():
        made = made.clone() if way == 'expanded' else made
        made[tuple(random.randrange(side) for side in shape)] = random.choice(EXTREME)
    return made


def is_ordinary(tensors):
    """Whether no value is extreme: all are finite, and squares and products of them are."""
    return all((each.abs() < 1e9).all() for each in tensors)  # False for NaN


def samplers(levels, queries, finished=False):
    """By the operator and by PyTorch's form: functions of value, offsets (or finished locations) and logits."""
    plan = sampling_plan(queries, levels, torch.device('cpu'))
    plan = plan._replace(reference_points=None) if finished else plan
    sides = [side for shape in levels for side in shape]
    return (
        lambda *tensors: deformable_sampling(*tensors, plan.reference_points, sides),
        lambda *tensors: DeformableSampling()(*tensors, plan),
    )


def norms(grid, pool, stabilize):
    """By the operator and by PyTorch's form: functions of tokens, the logarithms of both maps, ratios and weights."""
    options = DTNOptions(Windows.of(Layout(grid), pool), 1e-5, stabilize)
    ways = (
        lambda *tensors: dtn(*tensors, windows=(*grid, pool), eps=1e-5, stabilize=stabilize),
        lambda *tensors: PlainDTN()(*tensors, options),
    )

    def of_maps(norm):
        return lambda x, rows, columns, *others: norm(
            x, rows.softmax(dim=-1), columns.softmax(dim=-1), *others
        )

    return tuple(map(of_maps, ways))


def with_gradients(function, tensors, grad=None):
    leaves = [each.detach().requires_grad_() for each in tensors]
    out = function(*leaves)
    if grad is None:
        grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).cos()
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def compare(names, ours, theirs, dtype):
    for name, mine, other in zip(names, ours, theirs, strict=True):
        # Gradients of ratios are small differences of large sums.
        is_ratio = name.endswith('ratio')
        if mine.numel() and not (is_ratio and dtype is torch.float32):
            error = (mine - other).abs().max() / other.abs().max().clamp(min=1)
            assert error <= ACCEPTED[dtype] * (100 if is_ratio else 1), (name, error)


def deformable():
    dtype = random.choice(list(ACCEPTED))
    batch, heads, width, points = (
        random.choice(s) for s in ([0, 1, 2], [1, 3], [1, 5, 32, 64], [1, 4])
    )
    shapes = tuple(
        (random.randint(1, 6), random.randint(1, 6)) for _ in range(random.randint(1, 3))
    )
    queries = (random.randint(0, 4), random.randint(1, 4))
    samples = (batch, queries[0] * queries[1], heads, len(shapes), points)
    value = tensor(batch, sum(h * w for h, w in shapes), heads, width, dtype=dtype)
    # Beside whole numbers: PyTorch's gradients at a border may be those of its other side.
    offsets, logits = 3 * tensor(*samples, 2, dtype=dtype), tensor(*samples, dtype=dtype)
    finished = random.random() < 0.5
    if finished:
        offsets = offsets / 6 + 0.5
    ours, theirs = samplers(shapes, (queries,), finished)
    inputs = value, offsets, logits
    grad = tensor(batch, samples[1], heads * width, dtype=dtype, extreme=0.1)
    found = with_gradients(ours, inputs, grad)
    if not grad.numel():
        return
    expected = with_gradients(theirs, inputs, grad)
    names = 'out', 'value', 'offsets', 'logits'
    for name, mine, other in zip(names, found, expected, strict=True):
        assert not (mine.isfinite() & other.isnan()).any(), f'{name} hides NaN'
    if is_ordinary((*inputs, grad)):
        compare(names, found, expected, dtype)
    elif not any((each.abs() == HUGE).any() for each in (*inputs, grad)):
        assert torch.equal(found[0].isfinite(), expected[0].isfinite()), 'out'


def normalise():
    dtype = random.choice(list(ACCEPTED))
    batch, heads, width, pool = (
        random.choice(s) for s in ([0, 1, 2], [1, 3], [1, 4, 33], [1, 2, 4])
    )
    grid = (random.randint(1, 70 if random.random() < 0.1 else 9), random.randint(1, 9))
    windows = Windows.of(Layout(grid), pool)
    # Variances of next to nothing leave float32 no digits.
    is_exact = dtype is torch.float64
    sharpness = random.choice([1, 100]) if is_exact else 1
    logits = [
        sharpness * tensor(random.choice([1, heads]), side, side, dtype=dtype, extreme=0.1)
        for side in windows.cells
    ]
    x = tensor(batch, grid[0] * grid[1], heads, width, dtype=dtype)
    ratios = [
        random.choice([torch.rand, torch.zeros if is_exact else torch.rand])(heads, 1, dtype=dtype)
        for _ in '12'
    ]
    affine = [tensor(heads, width, dtype=dtype, extreme=0.05) for _ in '12']
    ours, theirs = norms(grid, pool, random.random() < 0.5)
    grad = tensor(*x.shape, dtype=dtype, extreme=0.1)

    inputs = x, *logits, *ratios, *affine
    found = with_gradients(ours, inputs, grad)
    if not grad.numel():
        return
    expected = with_gradients(theirs, inputs, grad)
    names = 'out', 'x', 'rows', 'columns', 'mean_ratio', 'var_ratio', 'weight', 'bias'
    if is_ordinary((*inputs, grad)):
        compare(names, found, expected, dtype)
    else:
        assert not (found[0].isnan() & expected[0].isfinite()).any()
        # PyTorch's form spreads NaN by products with zeros: of maps, and of cut windows.
        if is_ordinary([x]) and not windows.by_products:
            assert not (found[0].isfinite() & expected[0].isnan()).any(), 'out hides NaN'


def fuzz(count):
    for number in range(count):
        for run in (deformable, normalise):
            random.seed(number)
            torch.manual_seed(number)
            try:
                run()
            except Exception as error:
                raise RuntimeError(f'{run.__name__} with seed {number}') from error


def fail_allocations(core):
    """Let each allocation of each operator fail in turn: that is a MemoryError, in threads too."""
    for run in (deformable, normalise):
        for failing in itertools.count():
            random.seed(3)  # of ordinary size
            torch.manual_seed(3)
            core.fail_after(failing)
            try:
                run()
                break
            except MemoryError:
                continue
            finally:
                core.fail_after(-1)
        assert failing > 2, (run.__name__, failing)


if __name__ == '__main__':
    torch.set_num_threads(2)
    count, *path = sys.argv[1:]
    if path:  # of a library that was compiled for this
        core = ctypes.CDLL(path[0])
        library.library = lambda: (core, '')
        fail_allocations(core)
    fuzz(int(count))
    print('done')
