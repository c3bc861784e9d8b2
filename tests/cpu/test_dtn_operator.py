"""DTN in C++ beside the same in PyTorch's operators, and what PyTorch knows of it."""

import subprocess
import sys

import pytest
import torch

from benchmarks.side_by_side import saved_bytes
from mmlape.cpu import library, modules, optimize
from mmlape.cpu.dtn import dtn
from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.norm.dtn_maps import DTNOptions, PlainDTN, Windows
from mmlape.runtime.recompute import recomputed

pytestmark = pytest.mark.usefixtures('switched_on')

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
    'no image': (0, (4, 4), 2, 4, 2),
}


def inputs(shape, dtype, shared=False, sharpness=1.0):
    """Arguments, with the logarithms of both maps in their place."""
    batch, grid, heads, width, pool = shape
    rows, columns = Windows.of(grid, pool).cells
    maps = (
        sharpness * torch.randn(1 if shared else heads, side, side, dtype=dtype)
        for side in (rows, columns)
    )
    x = torch.randn(batch, grid[0] * grid[1], heads, width, dtype=dtype)
    ratios = torch.rand(2, heads, 1, dtype=dtype)
    return [x, *maps, *ratios, *torch.randn(2, heads, width, dtype=dtype)]


def by_operator(x, rows, columns, *others):
    *tensors, (windows, eps, stabilize) = others
    maps = rows.softmax(dim=-1), columns.softmax(dim=-1)
    sizes = (*windows.grid, windows.pool)
    return dtn(x, *maps, *tensors, windows=sizes, eps=eps, stabilize=stabilize)


def by_pytorch(x, rows, columns, *others):
    return PlainDTN()(x, rows.softmax(dim=-1), columns.softmax(dim=-1), *others)


def options(shape, stabilize):
    return DTNOptions(Windows.of(shape[1], shape[4]), 1e-5, stabilize)


def with_gradients(function, tensors, fixed):
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = function(*leaves, fixed)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).cos()
    return out, *torch.autograd.grad(out, leaves, upstream)


def assert_equal_forms(tensors, fixed, accepted):
    ours = with_gradients(by_operator, tensors, fixed)
    theirs = with_gradients(by_pytorch, tensors, fixed)
    for name, mine, other in zip(NAMES, ours, theirs, strict=True):
        assert mine.dtype == other.dtype and mine.shape == other.shape
        if other.numel():
            error = (mine - other).abs().max() / other.abs().max().clamp(min=1)
            assert error <= (accepted / 100 if name == 'out' else accepted), name


@pytest.mark.parametrize('stabilize', [True, False])
@pytest.mark.parametrize('shared', [False, True], ids=['', 'one map'])
@pytest.mark.parametrize('name', SHAPES)
def test_equals_pytorchs_operators(name, shared, stabilize):
    shape = SHAPES[name]
    fixed = options(shape, stabilize)
    assert_equal_forms(inputs(shape, torch.float64, shared), fixed, 1e-9)
    # Some gradients are small differences of large sums: of ratios, or of a head of one channel, of which only the sign
    # counts.
    assert_equal_forms(inputs(shape, torch.float32, shared), fixed, 1e-3)


@pytest.mark.parametrize('name', ['long axes', 'sequence', 'odd'])
def test_heads_that_look_at_few_places(name):
    """Weights that are next to nothing count as zeros in both forms."""
    tensors = inputs(SHAPES[name], torch.float64, sharpness=300)
    assert_equal_forms(tensors, options(SHAPES[name], True), 1e-9)


@pytest.mark.parametrize('stabilize', [True, False])
@pytest.mark.parametrize('pool', [1, 2])
def test_gradients_are_derivatives(pool, stabilize):
    shape = (2, (3, 4), 2, 3, pool)
    tensors = [tensor.requires_grad_() for tensor in inputs(shape, torch.float64)]
    fixed = options(shape, stabilize)
    assert torch.autograd.gradcheck(lambda *leaves: by_operator(*leaves, fixed), tensors)


def test_large_means_keep_their_variance():
    tensors = inputs(SHAPES['pooled'], torch.float32)
    tensors[0] += 1e3
    fixed = options(SHAPES['pooled'], False)
    exact = by_operator(*(tensor.double() for tensor in tensors), fixed)
    error = (by_operator(*tensors, fixed) - exact).abs().max() / exact.abs().max()
    assert error < 1e-3


def test_strides_do_not_matter():
    shape = SHAPES['odd']
    tensors = inputs(shape, torch.float64)
    turned = [tensor.mT.contiguous().mT for tensor in tensors]
    found = with_gradients(by_operator, turned, options(shape, True))
    for mine, other in zip(
        found, with_gradients(by_operator, tensors, options(shape, True)), strict=True
    ):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize('part', [*range(1, 7), 'type', 'heads', 'grid', 'pool'])
def test_what_does_not_fit_is_refused(part):
    shape = SHAPES['odd']
    tensors, (height, width), pool = inputs(shape, torch.float32), shape[1], 1
    if part == 'type':
        tensors[5] = tensors[5].double()
    elif part == 'heads':
        tensors[1] = tensors[1].repeat(2, 1, 1)
    elif part == 'grid':
        height += 1
    elif part == 'pool':
        pool = 2
    else:
        tensors[part] = tensors[part][..., :-1]
    with pytest.raises(
        ValueError, match=r'windows \(H, W, pool\) do not fit: got x \(3, 35, 2, 3\)'
    ):
        dtn(*tensors, windows=(height, width, pool), eps=1e-5, stabilize=True)


@pytest.fixture
def norm():
    made = DTN(8, 2, pool=2)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return optimize(made, keep_memory=False)


def tokens(grid=(5, 7)):
    return torch.randn(2, grid[0] * grid[1], 8, requires_grad=True)


def count_calls(monkeypatch):
    calls, original = [], modules.dtn
    monkeypatch.setattr(
        modules, 'dtn', lambda *args, **more: calls.append(1) or original(*args, **more)
    )
    return calls


def test_without_operators_the_layer_is_pytorchs(norm, monkeypatch):
    calls, x = count_calls(monkeypatch), tokens()
    ours = norm(x, (5, 7))
    assert len(calls) == 1
    monkeypatch.setenv('MMLAPE_OPS', '0')
    library.library.cache_clear()
    torch.testing.assert_close(norm(x, (5, 7)), ours)  # as after loading a pickle elsewhere
    assert len(calls) == 1
    with pytest.raises(RuntimeError, match='not there: switched off by MMLAPE_OPS=0'):
        by_operator(*inputs(SHAPES['odd'], torch.float32), options(SHAPES['odd'], True))


def test_elsewhere_the_layer_does_without_it(norm, monkeypatch):
    calls, x = count_calls(monkeypatch), tokens()
    torch.func.grad(lambda x: norm(x, (5, 7)).sum())(x.detach())
    torch.vmap(lambda x: norm(x[None], (5, 7))[0])(x.detach())
    norm(x, Layout((5, 7), mask=torch.ones(2, 35, dtype=torch.bool)))
    norm.to('meta')(x.detach().to('meta'), (5, 7))
    assert not calls


def test_it_can_be_derived_once(norm):
    x = tokens()
    (grad,) = torch.autograd.grad(norm(x, (5, 7)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match='once_differentiable'):
        grad.sum().backward()


def test_graphs_of_torch_compile_hold_it_at_any_grid(norm):
    graphs = []

    def look(graph, _):
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend=look)
    for grid in ((6, 8), (4, 10), (5, 7), (9, 11)):
        x = tokens(grid)
        torch.testing.assert_close(compiled(x, grid), norm(x, grid))
    # the second grid makes its sides symbolic, and no later one is compiled again
    assert len(graphs) == 2 and all('mmlape.dtn' in code for code in graphs)


def test_what_pytorch_is_told_of_it_is_true():
    shape = SHAPES['cut windows']
    tensors = [tensor.requires_grad_() for tensor in inputs(shape, torch.float64)]
    arguments = (*tensors, (*shape[1], shape[4]), 1e-5, True)
    torch.library.opcheck(
        torch.ops.mmlape.dtn.default,
        arguments,
        test_utils=('test_schema', 'test_faketensor', 'test_aot_dispatch_dynamic'),
    )


def test_exported_programs_need_no_mmlape(norm):
    class Normalise(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm(x, (5, 7))

    x = tokens()
    program = torch.export.export(Normalise(), (x,), strict=False)
    assert 'mmlape' not in str(program.graph_module)
    torch.testing.assert_close(program.module()(x), norm(x, (5, 7)), atol=1e-5, rtol=1e-5)


def test_recomputation_gives_the_same(norm):
    x = tokens()
    (kept,) = torch.autograd.grad(norm(x, (5, 7)).square().sum(), x)
    (again,) = torch.autograd.grad(recomputed(norm, x, (5, 7)).square().sum(), x)
    assert torch.equal(kept, again)


def test_what_it_saves_for_the_backward_pass():
    """Its input and statistics."""
    made = optimize(DTN(64, 4), keep_memory=False)
    x = torch.randn(2, 64, 64, requires_grad=True)
    assert saved_bytes(lambda: made(x)) < 4 * x.numel() * 4


_THREADS = """
import torch
from mmlape.cpu import optimize
from mmlape.norm import DTN
torch.manual_seed(0)
for batch, grid, pool in ((3, (12, 10), 1), (1, (16, 18), 4)):
    norm = optimize(DTN(32, 2, pool=pool))
    x = torch.randn(batch, grid[0] * grid[1], 32, requires_grad=True)
    def run(threads):
        torch.set_num_threads(threads)
        out = norm(x, grid)
        return out, *torch.autograd.grad(out.square().sum(), [x, *norm.parameters()])
    one, several, again = run(1), run(3), run(3)
    print(all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(one, several, again)))
"""


def test_threads_change_nothing():
    """Heads side by side, and where there are fewer than threads, all threads for one after the other."""
    done = subprocess.run([sys.executable, '-c', _THREADS], capture_output=True, text=True)
    assert done.stdout.split().count('True') == 2, done.stderr
