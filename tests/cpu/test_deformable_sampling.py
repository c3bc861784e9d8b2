"""Deformable attention's sampling in C++, beside the same in PyTorch's operators, and what PyTorch knows of it."""

import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.side_by_side import saved_bytes
from mmlape.cpu import library, modules, optimize
from mmlape.cpu.deformable_sampling import deformable_sampling
from mmlape.layers import DeformableAttention, sampling_plan
from mmlape.layers.deformable import DeformableSampling
from mmlape.runtime.recompute import recomputed

CPU = torch.device('cpu')
SHAPES = ((5, 4), (3, 2), (1, 1))
QUERIES = ((6, 7),)

pytestmark = pytest.mark.usefixtures('switched_on')


def plan(shapes=SHAPES, queries=QUERIES):
    return sampling_plan(queries, shapes, CPU)


def inputs(shapes=SHAPES, *, batch=2, heads=3, width=8, points=4, queries=42, dtype=torch.float32):
    """Value, offsets over the borders, and logits."""
    values = sum(h * w for h, w in shapes)
    samples = (batch, queries, heads, len(shapes), points)
    return [
        torch.randn(batch, values, heads, width, dtype=dtype),
        3 * torch.randn(*samples, 2, dtype=dtype),
        torch.randn(samples, dtype=dtype),
    ]


def sample(value, offsets, logits, where):
    flat = [side for shape in where.shapes for side in shape]
    return deformable_sampling(value, offsets, logits, where.reference_points, flat)


by_pytorch = DeformableSampling()


def with_gradients(function, tensors, where):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, where)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad(out, leaves, upstream)


def assert_equal_forms(tensors, where, **tolerances):
    ours = with_gradients(sample, tensors, where)
    theirs = with_gradients(by_pytorch, tensors, where)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, **tolerances)


def test_which_calls_it_serves():
    serves = modules._serves
    assert library.is_there() and serves(torch.empty(0))
    assert not serves(torch.empty(0, device='meta'))
    with torch.autograd.forward_ad.dual_level():
        assert not serves(torch.empty(0))


@pytest.mark.parametrize('width', [1, 7, 16, 32, 33, 64])
@pytest.mark.parametrize('shapes', [SHAPES, ((4, 4),)])
def test_equals_pytorchs_operators(width, shapes):
    assert_equal_forms(inputs(shapes, width=width), plan(shapes), atol=2e-5, rtol=1e-5)


def test_equals_pytorchs_operators_more_closely_in_float64():
    # References and sizes are float32 in both.
    assert_equal_forms(inputs(dtype=torch.float64), plan(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(dtype):
    tensors = inputs(dtype=dtype)
    assert_equal_forms(tensors, plan(), atol=1e-6, rtol=2 * torch.finfo(dtype).eps)
    exact = sample(*(tensor.float() for tensor in tensors), plan())
    assert torch.equal(sample(*tensors, plan()), exact.to(dtype))


def test_gradients_are_derivatives():
    where = plan(((3, 4), (2, 1)), ((2, 3),))
    tensors = inputs(
        where.shapes, batch=1, heads=2, width=3, points=2, queries=6, dtype=torch.float64
    )
    leaves = [tensor.requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(lambda *t: sample(*t, where), leaves, eps=1e-7, atol=1e-4)


def test_borders():
    """One query in the middle of a 2 x 2 map of ones, moved over each border by parts of a cell."""
    value = torch.ones(1, 4, 1, 1)
    steps = torch.tensor([-2.0, -1.5, -1.25, -1.0, -0.5, 0.0, 0.5, 1.0, 1.25, 1.5, 2.0])
    offsets = torch.cartesian_prod(steps, steps).view(1, -1, 1, 1, 1, 2)
    where = sampling_plan(((1, 1),) * offsets.shape[1], ((2, 2),), CPU)
    found = sample(value, offsets, torch.zeros(offsets.shape[:-1]), where)
    # A cell's share falls off over its own width: half a cell of zeros reaches into the map.
    each = (1.5 - steps.abs()).clamp(0, 1)
    assert torch.allclose(found.flatten(), torch.outer(each, each).flatten(), atol=1e-6)
    assert_equal_forms([value, offsets, torch.zeros(offsets.shape[:-1])], where)


@pytest.mark.parametrize('bad', [1e10, -1e10, 3e38, float('inf'), float('-inf'), float('nan')])
def test_offsets_that_no_map_reaches(bad):
    """Nothing outside is read; what is not finite gives NaN where PyTorch's operators do."""
    tensors = inputs()
    tensors[1][0, 3, 1, 0, 2, 0] = bad
    tensors[1][1, 4, 1, 1, 1, 1] = bad
    out, to_value, to_offsets, to_logits = with_gradients(sample, tensors, plan())
    theirs = with_gradients(by_pytorch, tensors, plan())
    for mine, other in zip(
        (out, to_value, to_logits), (theirs[0], theirs[1], theirs[3]), strict=True
    ):
        torch.testing.assert_close(mine, other, equal_nan=True, atol=2e-5, rtol=1e-5)
    finite = torch.isfinite(torch.tensor(bad))
    assert out.isfinite().all() == to_offsets.isfinite().all() == finite


@pytest.mark.parametrize('offset', [0.0, 100.0])
def test_a_weight_that_is_not_finite_shows(offset):
    """Wherever its sample lies, as with PyTorch's operators."""
    tensors = inputs()
    tensors[1][1, 4, 1] = offset
    tensors[2][1, 4, 1, 1, 1] = float('nan')
    found, expected = sample(*tensors, plan()), by_pytorch(*tensors, plan())
    assert found[1, 4, 8:16].isnan().all() and found.isnan().sum() == 8
    torch.testing.assert_close(found, expected, equal_nan=True, atol=2e-5, rtol=1e-5)


def test_what_is_not_sampled_is_not_read():
    """Values that are not finite stay where they are: a zero share of them would be NaN."""
    value, offsets, logits = inputs(((4, 4),), queries=16)
    value[:, 10:] = float('inf')
    where = plan(((4, 4),), ((4, 4),))
    offsets = torch.zeros_like(
        offsets
    )  # whole numbers, rounded: neighbours may get a share of 1e-7
    found = sample(value, offsets, logits, where)
    assert found[:, :5].isfinite().all()
    assert torch.equal(found.isfinite(), by_pytorch(value, offsets, logits, where).isfinite())


@pytest.mark.parametrize(
    ('batch', 'queries'), [(0, ((2, 3),)), (2, ((0, 3),)), (1, ((1, 1),))], ids=str
)
def test_empty_and_small_inputs(batch, queries):
    count = queries[0][0] * queries[0][1]
    tensors = inputs(batch=batch, queries=count)
    out, *grads = with_gradients(sample, tensors, plan(queries=queries))
    assert out.shape == (batch, count, 24)
    assert [grad.shape for grad in grads] == [tensor.shape for tensor in tensors]


def test_an_empty_level_adds_nothing():
    shapes = ((3, 2), (0, 5))
    value, offsets, logits = inputs(shapes)
    logits[..., 1, :] = -1e4
    found = sample(value, offsets, logits, plan(shapes))
    first = sample(value, offsets[:, :, :, :1], logits[:, :, :, :1], plan(shapes[:1]))
    assert torch.allclose(found, first, atol=1e-6)


def test_strides_do_not_matter():
    tensors = inputs()
    strided = [tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in strided)
    for mine, other in zip(
        with_gradients(sample, strided, plan()),
        with_gradients(sample, tensors, plan()),
        strict=True,
    ):
        assert torch.equal(mine, other)


@pytest.mark.parametrize('part', ['value', 'offsets', 'logits', 'references', 'shapes'])
def test_shapes_that_do_not_fit_are_refused(part):
    """Before anything is read."""
    value, offsets, logits = inputs()
    references, shapes = plan().reference_points, [5, 4, 3, 2, 1, 1]
    parts = dict(value=value, offsets=offsets, logits=logits, references=references, shapes=shapes)
    cut = parts[part][1:] if part == 'shapes' else parts[part][:, 1:]
    with pytest.raises(ValueError, match='do not fit: got'):
        deformable_sampling(**{**parts, part: cut})
    for wrong in ([-5, -4, 3, 2, 1, 1], [*shapes, 0], [5, 4, 3, 2, 2, 1]):
        with pytest.raises(ValueError, match='do not fit: got'):
            deformable_sampling(value, offsets, logits, references, wrong)


def test_pytorchs_own_checks():
    """Nothing is written into, shapes without values are right, gradients go through traced graphs."""
    where, tensors = plan(), [tensor.requires_grad_() for tensor in inputs()]
    flat = [side for shape in where.shapes for side in shape]
    operator = torch.ops.mmlape.deformable_sampling.default
    torch.library.opcheck(operator, (*tensors, where.reference_points, flat))


@pytest.fixture
def module():
    made = DeformableAttention(24, 3, len(SHAPES), 4)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return optimize(made, keep_memory=False)


def streams(batch=2):
    return torch.randn(batch, 42, 24, requires_grad=True), torch.randn(batch, 27, 24)


def test_a_graph_of_torch_compile_holds_it(module):
    seen = []

    def look(graph, _):
        seen.append(graph.code)
        return graph

    query, value = streams()
    found = torch.compile(module, fullgraph=True, backend=look)(query, value, plan())
    assert 'mmlape.deformable_sampling' in seen[0] and len(seen) == 1, seen
    assert torch.allclose(found, module(query, value, plan()), atol=1e-6)


@pytest.mark.parametrize('strict', [False, True])
def test_exported_programs_need_no_mmlape(module, strict):
    query, value = streams()
    program = torch.export.export(module, (query, value, plan()), strict=strict)
    assert 'mmlape' not in str(program.graph_module)
    found = program.module()(query, value, plan())
    assert torch.allclose(found, module(query, value, plan()), atol=1e-5)


def test_functions_of_torch_func(module):
    query, value = streams()
    alone = torch.func.vmap(lambda q, v: module(q[None], v[None], plan())[0])(query, value)
    assert torch.allclose(alone, module(query, value, plan()), atol=1e-5)
    found = torch.func.grad(lambda q: module(q, value, plan()).sum())(query)
    (wanted,) = torch.autograd.grad(module(query, value, plan()).sum(), query)
    assert torch.allclose(found, wanted, atol=1e-4)


def test_a_second_derivative_is_refused(module):
    query, value = streams()
    (first,) = torch.autograd.grad(module(query, value, plan()).sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match='no autograd formula'):
        first.sum().backward()


def test_recomputation_gives_the_same(module):
    query, value = streams()
    (kept,) = torch.autograd.grad(module(query, value, plan()).sum(), query)
    (again,) = torch.autograd.grad(recomputed(module, query, value, plan()).sum(), query)
    assert torch.equal(kept, again)


def test_it_keeps_less_for_the_backward_pass(module):
    query, value = streams()
    ours = saved_bytes(lambda: module(query, value, plan()))
    module.sampling = module.sampling.plain
    assert ours < 0.6 * saved_bytes(lambda: module(query, value, plan()))


def test_under_autocast_the_projections_are_kept_in_bfloat16(module):
    query, value = streams()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = module(query, value, plan())
    assert half.dtype == torch.bfloat16
    exact = module(query, value, plan())
    assert (half.float() - exact).abs().max() < 0.04 * exact.abs().max()


class _Sampled(Dataset):
    def __init__(self, module):
        self.module = module

    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch.manual_seed(index)
        with torch.no_grad():
            return self.module(*streams(1), plan())[0]


def test_data_workers_can_use_it(module):
    """They are forks of a process that has used it."""
    data = _Sampled(module)
    wanted = torch.stack([data[index] for index in range(4)])
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context='fork')
    assert torch.equal(next(iter(loader)), wanted)


_THREADS = """
import sys
import torch
from mmlape.cpu.deformable_sampling import deformable_sampling
from mmlape.layers import sampling_plan
torch.manual_seed(0)
shapes = ((16, 12), (8, 6))
plan = sampling_plan(((32, 24),), shapes, torch.device('cpu'))
tensors = [torch.randn(2, 240, 3, 32), torch.randn(2, 768, 3, 2, 4, 2), torch.randn(2, 768, 3, 2, 4)]
def run(threads):
    torch.set_num_threads(threads)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = deformable_sampling(*leaves, plan.reference_points, [16, 12, 8, 6])
    return out, *torch.autograd.grad(out.square().sum(), leaves)
one, several, again = run(1), run(3), run(3)
print(all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(one, several, again)))
maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''
print(len({line.split()[-1] for line in maps.splitlines() if 'libgomp' in line}))
"""


@pytest.mark.slow
def test_threads_change_nothing_and_are_pytorchs():
    done = subprocess.run([sys.executable, '-c', _THREADS], capture_output=True, text=True)
    # Threads are those of GCC on Linux; elsewhere one may compute alone.
    assert done.stdout.split() == ['True', str(int(sys.platform == 'linux'))], done.stderr
