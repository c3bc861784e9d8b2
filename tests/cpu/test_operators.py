"""Deformable sampling and DTN in C++: values and gradients of PyTorch's forms, and what PyTorch knows of operators.

Layouts, empty and extreme inputs are in test_fuzz_operators.py.
"""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fuzz_operators import norms, samplers, with_gradients
from torch.utils.data import DataLoader, Dataset

from benchmarks.side_by_side import saved_bytes
from mmlape.cpu import library, optimize, replace
from mmlape.cpu.library import deformable_sampling, dtn
from mmlape.layers import DeformableAttention, sampling_plan
from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.norm.dtn_maps import Windows
from mmlape.runtime.recompute import recomputed

CPU = torch.device('cpu')
LEVELS, QUERIES = ((5, 4), (3, 2), (1, 1)), ((6, 7),)

pytestmark = pytest.mark.usefixtures('switched_on')


def sampled(levels=LEVELS, *, batch=2, heads=3, width=8, points=4, queries=42, dtype=torch.float32):
    """Value, offsets over the borders, and logits."""
    values = sum(h * w for h, w in levels)
    samples = (batch, queries, heads, len(levels), points)
    return [
        torch.randn(batch, values, heads, width, dtype=dtype),
        3 * torch.randn(*samples, 2, dtype=dtype),
        torch.randn(samples, dtype=dtype),
    ]


def finished_samples(*arguments, **options):
    """Value, locations in units of the maps, and logits."""
    value, offsets, logits = sampled(*arguments, **options)
    return [value, offsets / 6 + 0.5, logits]


every_kind = pytest.mark.parametrize('finished', [False, True], ids=['offsets', 'locations'])


def assert_samples_equal(tensors, pair, **tolerances):
    ours, theirs = (with_gradients(function, tensors) for function in pair)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, **tolerances)


@every_kind
def test_samples_are_pytorchs(finished):
    for levels, width in itertools.product((LEVELS, ((4, 4),)), (1, 7, 16, 32, 33, 64)):
        tensors = (finished_samples if finished else sampled)(levels, width=width)
        pair = samplers(levels, QUERIES, finished)
        assert_samples_equal(tensors, pair, atol=1e-4 if finished else 2e-5, rtol=1e-5)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
@every_kind
def test_samples_of_other_types(dtype, finished):
    """Half types are computed in float32; references and sizes are float32 in all."""
    tensors = (finished_samples if finished else sampled)(dtype=dtype)
    pair = samplers(LEVELS, QUERIES, finished)
    exact = dtype is torch.float64
    tolerances = (1e-12, 1e-12) if exact else (1e-6, 2 * torch.finfo(dtype).eps)
    assert_samples_equal(tensors, pair, atol=tolerances[0], rtol=tolerances[1])
    if not exact:
        in_float32 = pair[0](*(tensor.float() for tensor in tensors))
        assert torch.equal(pair[0](*tensors), in_float32.to(dtype))


def test_borders():
    """One query in the middle of a 2 x 2 map of ones, moved over each border by parts of a cell."""
    value = torch.ones(1, 4, 1, 1)
    steps = torch.tensor([-2.0, -1.5, -1.25, -1.0, -0.5, 0.0, 0.5, 1.0, 1.25, 1.5, 2.0])
    offsets = torch.cartesian_prod(steps, steps).view(1, -1, 1, 1, 1, 2)
    pair = samplers(((2, 2),), ((1, 1),) * offsets.shape[1])
    found = pair[0](value, offsets, torch.zeros(offsets.shape[:-1]))
    # A cell's share falls off over its own width: half a cell of zeros reaches into the map.
    each = (1.5 - steps.abs()).clamp(0, 1)
    assert torch.allclose(found.flatten(), torch.outer(each, each).flatten(), atol=1e-6)
    assert_samples_equal([value, offsets, torch.zeros(offsets.shape[:-1])], pair)


@pytest.mark.parametrize('offset', [0.0, 100.0])
@pytest.mark.parametrize('what', ['weight', 'gradient'])
@every_kind
def test_what_is_not_finite_shows(what, offset, finished):
    """Wherever its samples lie, as with PyTorch's form."""
    tensors = finished_samples() if finished else sampled()
    tensors = [tensor.requires_grad_() for tensor in tensors]
    with torch.no_grad():
        tensors[1][1, 4, 1] = offset
        if what == 'weight':
            tensors[2][1, 4, 1, 1, 1] = float('nan')
    upstream = torch.ones(2, 42, 24)
    if what == 'gradient':
        upstream[1, 4, 9] = float('nan')
    found, expected = (
        [out := function(*tensors), *torch.autograd.grad(out, tensors, upstream)]
        for function in samplers(LEVELS, QUERIES, finished)
    )
    torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-4, rtol=1e-5)
    broken = found[0][1, 4, 8:16] if what == 'weight' else found[2][1, 4, 1]
    assert not broken.isfinite().any()
    assert (~found[2].isfinite()).sum() == found[2][1, 4, 1].numel()


def test_an_empty_level_adds_nothing():
    levels = ((3, 2), (0, 5))
    value, offsets, logits = sampled(levels)
    logits[..., 1, :] = -1e4
    found = samplers(levels, QUERIES)[0](value, offsets, logits)
    first = samplers(levels[:1], QUERIES)[0](value, offsets[:, :, :, :1], logits[:, :, :, :1])
    assert torch.allclose(found, first, atol=1e-6)


def test_samples_that_do_not_fit_are_refused():
    """Before anything is read."""
    value, offsets, logits = sampled()
    references = sampling_plan(QUERIES, LEVELS, CPU).reference_points
    shapes = [5, 4, 3, 2, 1, 1]
    parts = dict(value=value, offsets=offsets, logits=logits, references=references, shapes=shapes)
    for part, whole in parts.items():
        cut = whole[1:] if part == 'shapes' else whole[:, 1:]
        with pytest.raises(ValueError, match='do not fit: got'):
            deformable_sampling(**{**parts, part: cut})
    for wrong in ([-5, -4, 3, 2, 1, 1], [*shapes, 0], [5, 4, 3, 2, 2, 1]):
        with pytest.raises(ValueError, match='do not fit: got'):
            deformable_sampling(value, offsets, logits, references, wrong)


NAMES = ('out', 'x', 'rows', 'columns', 'mean_ratio', 'var_ratio', 'weight', 'bias')
# batch, grid, heads, channels per head, pool
SHAPES = {
    'square': (2, (14, 14), 5, 64, 1),
    'odd': (3, (5, 7), 2, 3, 1),
    'pooled': (2, (8, 12), 4, 16, 4),
    'cut windows': (2, (5, 7), 2, 33, 3),
    'one window': (1, (2, 3), 2, 8, 4),
    'sequence': (1, (1, 130), 1, 17, 1),
    'column': (2, (9, 1), 3, 2, 2),
    'one channel': (2, (4, 5), 3, 1, 1),
    'one token': (2, (1, 1), 2, 4, 1),
    'long axes': (1, (70, 66), 2, 16, 1),
}


def normed(shape, dtype, shared=False):
    """Arguments of a norm, with the logarithms of both maps in their place."""
    batch, grid, heads, width, pool = shape
    maps = (
        torch.randn(1 if shared else heads, side, side, dtype=dtype)
        for side in Windows.of(Layout(grid), pool).cells
    )
    x = torch.randn(batch, grid[0] * grid[1], heads, width, dtype=dtype)
    ratios = torch.rand(2, heads, 1, dtype=dtype)
    return [x, *maps, *ratios, *torch.randn(2, heads, width, dtype=dtype)]


def pair_of(shape, stabilize):
    """By the operator and by PyTorch's form: functions of :func:`normed`."""
    return norms(shape[1], shape[4], stabilize)


@pytest.mark.parametrize('name', SHAPES)
def test_norms_are_pytorchs(name):
    """Stabilised or not, with a map for each head or one for all."""
    # Some gradients are small differences of large sums: of ratios, or of a head of one channel, of which only the sign
    # counts.
    precisions = (torch.float64, 1e-9), (torch.float32, 1e-3)
    for stabilize, shared, (dtype, accepted) in itertools.product(
        (True, False), (False, True), precisions
    ):
        tensors = normed(SHAPES[name], dtype, shared)
        ours, theirs = (with_gradients(norm, tensors) for norm in pair_of(SHAPES[name], stabilize))
        for what, mine, other in zip(NAMES, ours, theirs, strict=True):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            error = (mine - other).abs().max() / other.abs().max().clamp(min=1)
            case = what, stabilize, shared, dtype
            assert error <= (accepted / 100 if what == 'out' else accepted), case


def test_large_means_keep_their_variance():
    tensors, (norm, _) = normed(SHAPES['pooled'], torch.float32), pair_of(SHAPES['pooled'], False)
    tensors[0] += 1e3
    exact = norm(*(tensor.double() for tensor in tensors))
    assert (norm(*tensors) - exact).abs().max() < 1e-3 * exact.abs().max()


def test_squares_beyond_float32_are_pytorchs():
    """Such a head is divided by infinity, and the others of its token are what they are."""
    tensors = normed(SHAPES['odd'], torch.float32)
    tensors[0][1, 3, 0, 2] = -(2.0**100)
    ours, theirs = (with_gradients(norm, tensors) for norm in pair_of(SHAPES['odd'], True))
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-4, rtol=1e-4)
    assert all(each.isfinite().all() for each in ours)


def test_norms_that_do_not_fit_are_refused():
    tensors = normed(SHAPES['odd'], torch.float32)
    windows = (5, 7, 1)
    cases = [(windows, part, tensors[part][..., :-1]) for part in range(1, 7)]
    cases += [(windows, 5, tensors[5].double()), (windows, 1, tensors[1].repeat(2, 1, 1))]
    cases += [((6, 7, 1), 0, tensors[0]), ((5, 7, 2), 0, tensors[0])]
    for given, part, wrong in cases:
        with pytest.raises(ValueError, match=r'do not fit: got x \(3, 35, 2, 3\)'):
            dtn(
                *tensors[:part],
                wrong,
                *tensors[part + 1 :],
                windows=given,
                eps=1e-5,
                stabilize=True,
            )


@pytest.mark.parametrize('name', ['deformable_sampling', 'dtn', 'locations'])
def test_what_pytorch_is_told_is_true(name):
    """Nothing is written into, shapes without values are right, gradients go through traced graphs."""
    if name == 'dtn':
        x, rows, columns, *others = normed(SHAPES['cut windows'], torch.float64)
        tensors = [x, rows.softmax(dim=-1), columns.softmax(dim=-1), *others]
        more = ((5, 7, 3), 1e-5, True)
    else:
        tensors = sampled()
        more = (
            None if name == 'locations' else sampling_plan(QUERIES, LEVELS, CPU).reference_points,
            [side for shape in LEVELS for side in shape],
        )
    tensors = [tensor.requires_grad_() for tensor in tensors]
    # Not how it is registered: statistics of DTN are outputs without gradients.
    tests = ('test_schema', 'test_faketensor', 'test_aot_dispatch_dynamic')
    torch.library.opcheck(
        getattr(torch.ops.mmlape, 'dtn' if name == 'dtn' else 'deformable_sampling').default,
        (*tensors, *more),
        test_utils=tests,
    )


@pytest.fixture(params=['deformable_sampling', 'dtn'])
def layer(request):
    """A layer with the operator ``name``, its input and further arguments."""
    if request.param == 'dtn':
        module, shape, arguments = DTN(8, 2, pool=2), (2, 35, 8), ((5, 7),)
    else:
        module, shape = DeformableAttention(24, 3, len(LEVELS), 4), (2, 42, 24)
        arguments = torch.randn(2, 27, 24), sampling_plan(QUERIES, LEVELS, CPU)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    optimize(module, keep_memory=False)
    return SimpleNamespace(
        name=request.param,
        module=module,
        arguments=arguments,
        x=torch.randn(shape, requires_grad=True),
        call=lambda x: module(x, *arguments),
    )


def test_graphs_of_torch_compile_hold_it(layer):
    graphs = []

    def look(graph, _):
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(layer.module, fullgraph=True, backend=look)
    torch.testing.assert_close(compiled(layer.x, *layer.arguments), layer.call(layer.x))
    if layer.name == 'dtn':
        for grid in ((6, 8), (4, 10), (9, 11)):
            x = torch.randn(2, grid[0] * grid[1], 8)
            torch.testing.assert_close(compiled(x, grid), layer.module(x, grid))
    # the second grid makes its sides symbolic, and no later one is compiled again
    assert len(graphs) == 1 + (layer.name == 'dtn')
    assert all(f'mmlape.{layer.name}' in code for code in graphs)


def test_functions_of_torch_func_are_pytorchs(layer, monkeypatch):
    expected = layer.call(layer.x)
    (wanted,) = torch.autograd.grad(expected.sum(), layer.x)
    for name in ('dtn', 'deformable_sampling'):
        monkeypatch.setattr(replace, name, None)
    x = layer.x.detach()
    found = torch.func.grad(lambda x: layer.call(x).sum())(x)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    if layer.name == 'dtn':
        alone = torch.vmap(lambda x: layer.call(x[None])[0])(x)
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)
        layer.module(x, Layout((5, 7), mask=torch.ones(2, 35, dtype=torch.bool)))


def test_a_second_derivative_is_refused(layer):
    (grad,) = torch.autograd.grad(layer.call(layer.x).square().sum(), layer.x, create_graph=True)
    with pytest.raises(RuntimeError, match=r'no autograd formula|once_differentiable'):
        grad.sum().backward()


def test_recomputation_gives_the_same(layer):
    (saved,) = torch.autograd.grad(layer.call(layer.x).square().sum(), layer.x)
    again = recomputed(layer.module, layer.x, *layer.arguments).square().sum()
    assert torch.equal(saved, torch.autograd.grad(again, layer.x)[0])


def test_it_saves_less_for_the_backward_pass(layer):
    """DTN its input and statistics; the sampling its arguments."""
    ours = saved_bytes(lambda: layer.call(layer.x))
    if layer.name == 'dtn':
        assert ours < 4 * layer.x.numel() * 4
        return
    layer.module.sampling = layer.module.sampling.plain
    assert ours < 0.6 * saved_bytes(lambda: layer.call(layer.x))


def test_without_operators_the_layer_is_pytorchs(layer, monkeypatch):
    """As after loading a pickle on another machine."""
    ours = layer.call(layer.x)
    monkeypatch.setenv('MMLAPE_OPS', '0')
    library.library.cache_clear()
    torch.testing.assert_close(layer.call(layer.x), ours, atol=1e-4, rtol=1e-4)
    if layer.name == 'dtn':
        function, tensors = pair_of(SHAPES['odd'], True)[0], normed(SHAPES['odd'], torch.float32)
    else:
        function, tensors = samplers(LEVELS, QUERIES)[0], sampled()
    with pytest.raises(RuntimeError, match='not there: switched off by MMLAPE_OPS=0'):
        function(*tensors)


def test_which_calls_it_serves():
    serves = replace._serves
    assert library.is_there() and serves(torch.empty(0))
    assert not serves(torch.empty(0, device='meta'))
    with torch.autograd.forward_ad.dual_level():
        assert not serves(torch.empty(0))


class _Results(Dataset):
    def __init__(self):
        self.function, self.tensors = samplers(LEVELS, QUERIES)[0], sampled()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.function(*(tensor * index for tensor in self.tensors))


def test_data_workers_can_use_it():
    """They are forks of a process that has used it."""
    data = _Results()
    wanted = torch.stack([data[index] for index in range(4)])
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context='fork')
    assert torch.equal(next(iter(loader)), wanted)


_THREADS = """
import sys
import torch
from mmlape.cpu import optimize
from mmlape.cpu.library import deformable_sampling
from mmlape.layers import sampling_plan
from mmlape.norm import DTN
torch.manual_seed(0)
def same(call, leaves):
    def run(threads):
        torch.set_num_threads(threads)
        out = call()
        return out, *torch.autograd.grad(out.square().sum(), leaves)
    one, several, again = run(1), run(3), run(3)
    print(all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(one, several, again)))
plan = sampling_plan(((32, 24),), ((16, 12), (8, 6)), torch.device('cpu'))
leaves = [torch.randn(2, 240, 3, 32), torch.randn(2, 768, 3, 2, 4, 2), torch.randn(2, 768, 3, 2, 4)]
leaves = [tensor.requires_grad_() for tensor in leaves]
same(lambda: deformable_sampling(*leaves, plan.reference_points, [16, 12, 8, 6]), leaves)
for batch, grid, pool in ((3, (12, 10), 1), (1, (16, 18), 4)):
    norm = optimize(DTN(32, 2, pool=pool), keep_memory=False)
    operator, calls = norm.normalise, []
    operator.register_forward_pre_hook(lambda _, given: calls.append(given))
    norm(torch.randn(batch, grid[0] * grid[1], 32), grid)
    # Not those of the parameters: PyTorch makes the maps, and its products may depend on threads.
    leaves = [tensor.detach().requires_grad_() for tensor in calls[0][:7]]
    same(lambda: operator(*leaves, *calls[0][7:]), leaves)
maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''
print(len({line.split()[-1] for line in maps.splitlines() if 'libgomp' in line}))
"""


@pytest.mark.slow
def test_threads_change_nothing_and_are_pytorchs():
    """Of DTN, heads side by side, and where there are fewer than threads, all threads for one after the other."""
    done = subprocess.run([sys.executable, '-c', _THREADS], capture_output=True, text=True)
    # Threads are those of GCC on Linux; elsewhere one may compute alone.
    words = done.stdout.split()
    assert words.count('True') == 3, done.stderr
    assert words[-1] == str(int(sys.platform == 'linux'))
