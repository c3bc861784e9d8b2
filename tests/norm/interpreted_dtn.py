"""DTN's Triton kernels on the CPU, in Triton's interpreter: tests/norm/test_dtn_kernels.py runs this file in a process
with ``TRITON_INTERPRET=1``, which must be set before triton is imported. Kernels take a second or more here.
"""

from copy import deepcopy

import pytest
import torch
from dtn_norms import randomised
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_kernels import recorded

from mmlape.gpu import dtn as gpu_dtn
from mmlape.gpu import optimize, replace
from mmlape.layout import Layout
from mmlape.norm import DTN

HALF = torch.bfloat16


@pytest.fixture(autouse=True, scope='module')
def _interpreted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replace, 'DEVICES', ('cpu',))
        patch.setattr(gpu_dtn, 'PROGRAMS', 3)  # a program takes long here
        yield


def by_kernels(norm):
    fast = optimize(deepcopy(norm))
    assert type(fast) is replace.DTN
    return fast


def step(norm, tokens, layout, grad):
    """The result, and gradients of the tokens and all parameters."""
    tokens = tokens.detach().requires_grad_()
    out = norm(tokens, layout)
    found = torch.autograd.grad(out, [tokens, *norm.parameters()], grad.to(out.dtype))
    names = 'out', 'tokens', *dict(norm.named_parameters())
    return dict(zip(names, [out.detach(), *found], strict=True))


def assert_equals_float64(norm, tokens, layout, accepted=1e-4):
    """Kernels against PyTorch's operators in float64, by the largest value of each result."""
    with recorded(run=True) as launches:
        grad = torch.randn(tokens.shape).to(tokens.dtype)
        found = step(by_kernels(norm), tokens, layout, grad)
    assert len(launches) == 9
    exact = step(deepcopy(norm).double(), tokens.double(), layout, grad)
    for name, value in found.items():
        assert value.isfinite().all(), name
        error = (value.double() - exact[name]).abs().max() / exact[name].abs().max().clamp(min=1e-2)
        of_parameter = name not in ('out', 'tokens') or tokens.dtype is torch.float32
        bound = accepted if of_parameter else {torch.float16: 2e-3, HALF: 1.6e-2}[tokens.dtype]
        assert error < bound, (name, error)


def random_tokens(layout, channels, batch=2, dtype=torch.float32):
    return (torch.randn(batch, layout.num_tokens, channels) * 2 + 1).to(dtype)


CASES = {
    'prefix': (6, 2, Layout((2, 4), 1), {}, torch.float32),
    'cut cells': (6, 3, Layout((5, 3)), dict(pool=2, stabilize=False, ratio_var=0.75), HALF),
    'one token': (8, 2, Layout((1, 1)), {}, torch.float32),
    'sequence': (12, 3, Layout((1, 40), 2), {}, torch.float32),
    'column': (48, 3, Layout((35, 1)), {}, torch.float16),
    'two blocks of rows': (8, 1, Layout((36, 3)), {}, torch.float32),
    'full cells': (64, 4, Layout((8, 12), 1), dict(pool=4), torch.float32),
    'large cells': (24, 1, Layout((7, 16)), dict(pool=7, variance_only=True), HALF),
    'cut cells and prefix': (24, 3, Layout((7, 5), 3), dict(pool=3, ratio_mean=0), torch.float32),
    'wide': (768, 12, Layout((2, 3), 1), {}, torch.float32),
    'many heads': (768, 24, Layout((2, 3)), dict(pool=2), torch.float32),
    '16 heads of one channel': (16, 16, Layout((3, 2)), {}, torch.float32),
    'one channel': (1, 1, Layout((3, 4)), {}, torch.float32),
    'layer norm': (8, 2, Layout((3, 4)), dict(ratio_mean=1, ratio_var=1), torch.float32),
    'own statistics play no part': (8, 2, Layout((3, 4)), dict(ratio_var=0), torch.float32),
}  # fmt: skip


@pytest.mark.parametrize('case', CASES)
def test_equals_pytorchs_operators_in_float64(case):
    channels, heads, layout, options, dtype = CASES[case]
    norm = randomised(DTN(channels, heads, **options))
    batch = 1 if case in ('cut cells', 'wide', 'many heads') else 2  # which would take long
    assert_equals_float64(norm, random_tokens(layout, channels, batch, dtype), layout)


HARD = {
    'constant': lambda: torch.full((1, 12, 8), 3.0),
    'zero': lambda: torch.zeros(1, 12, 8),
    'large': lambda: torch.randn(1, 12, 8) * 1e4,
    'offset': lambda: torch.randn(1, 12, 8) + 1e3,
}


@pytest.mark.parametrize('stabilize', [True, False])
@pytest.mark.parametrize('kind', HARD)
def test_hard_inputs(kind, stabilize):
    """As far from float64 as PyTorch's operators are, or nearly."""
    norm, tokens = randomised(DTN(8, 2, stabilize=stabilize)), HARD[kind]()
    grad = torch.randn_like(tokens)
    found, plain = (step(each, tokens, (3, 4), grad) for each in (by_kernels(norm), norm))
    exact = step(deepcopy(norm).double(), tokens.double(), (3, 4), grad)
    for name, value in found.items():
        size = exact[name].abs().max().clamp(min=1)
        errors = [(each[name].double() - exact[name]).abs().max() / size for each in (found, plain)]
        assert value.isfinite().all() and errors[0] < max(1e-4, 4 * errors[1]), (name, errors)


@pytest.mark.parametrize('weights', [[0.0, 0, -8], [2000, 0, 0], [-30, 40, 5], [0, 0, 0]])
def test_extreme_maps_and_ratios(weights):
    norm = randomised(DTN(8, 2))
    norm.positions.weight.data[0] = torch.tensor(weights)
    norm.ratio_mean.omega.data = torch.tensor([-120.0, 120])
    layout = Layout((4, 5), 1)
    assert_equals_float64(norm, random_tokens(layout, 8, batch=1), layout)


def test_variance_is_never_negative():
    norm = DTN(8, 1, stabilize=False, ratio_var=0)
    norm.positions.weight.data = torch.tensor([[0.0, 0, -8]])
    tokens = 1e4 * torch.tensor([1.0, 1, 1, 5]).repeat(4)[None, :, None].expand(2, -1, 8)
    assert by_kernels(norm)(tokens, (4, 4)).isfinite().all()


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 7), st.integers(1, 7), st.integers(0, 2), st.integers(1, 3), st.integers(1, 9),
    st.integers(1, 4), st.booleans(), st.sampled_from([torch.float32, torch.float16, HALF]),
)  # fmt: skip
def test_any_sizes(height, width, prefix, heads, depth, pool, stabilize, dtype):
    torch.manual_seed(0)
    layout = Layout((height, width), prefix)
    norm = randomised(DTN(heads * depth, heads, pool=pool, stabilize=stabilize, eps=1e-3))
    tokens = random_tokens(layout, heads * depth, dtype=dtype)
    assert_equals_float64(norm, tokens, layout, accepted=2e-4)


def test_blocks_and_chunks_do_not_matter(monkeypatch):
    """Those of a GPU, and others; also where the centre is of a part of the chunks."""
    norm, layout = randomised(DTN(8, 2)), Layout((4, 10), 1)
    tokens = random_tokens(layout, 8)
    names = 'PROGRAMS', 'TILE', 'PARTS', 'COLUMNS', 'GRADIENT_COLUMNS'
    for sizes in ((1024, 1024, 32, 64), (1024, 64, 2, 64), (5, 64, 1, 16), (1, 4096, 32, 128)):
        for name, size in zip(names, (*sizes, sizes[-1]), strict=True):
            monkeypatch.setattr(gpu_dtn, name, size)
        assert_equals_float64(norm, tokens, layout)


def test_the_operator_and_a_graph():
    """What PyTorch checks of an operator (shapes without memory, gradients, sizes that vary), and one whole graph."""
    norm = by_kernels(randomised(DTN(4, 2)))
    options = [2, 3, 1, 0, 2], 1e-5, True, 0.0, 0.0
    parameters = norm.positions.weight, norm.ratio_mean.omega, None, norm.weight, norm.bias
    tokens = torch.randn(1, 6, 4, requires_grad=True)
    torch.library.opcheck(gpu_dtn.dtn, (tokens, *parameters, *options))
    graph = torch.compile(norm, backend='aot_eager', fullgraph=True, dynamic=True)
    with recorded(run=True) as launches:
        for grid in ((2, 3), (3, 3)):
            tokens = torch.randn(1, grid[0] * grid[1], 4, dtype=HALF)
            grad = torch.randn_like(tokens)
            found, expected = (step(each, tokens, grid, grad) for each in (graph, norm))
            torch.testing.assert_close([*found.values()], [*expected.values()])
    assert len(launches) == 36


def test_layouts_in_memory_second_derivatives_and_empty_batches():
    norm = by_kernels(randomised(DTN(4, 2)))
    tokens = torch.randn(4, 6, 1).transpose(0, 2).requires_grad_()
    out = norm(tokens, (2, 3))
    torch.testing.assert_close(out, norm(tokens.contiguous(), (2, 3)))
    (grad,) = torch.autograd.grad(out.square().sum(), tokens, create_graph=True)
    with pytest.raises(RuntimeError, match=r'mmlape\.gpu\.optimize has no second derivatives'):
        grad.sum().backward()
    empty = torch.randn(0, 6, 4, requires_grad=True)
    norm(empty, (2, 3)).sum().backward()
    assert empty.grad.shape == empty.shape
