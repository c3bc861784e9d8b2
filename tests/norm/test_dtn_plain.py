"""DTN in plain PyTorch under ``torch.compile`` and ``torch.func``, and what it saves."""

import pytest
import torch
from dtn_norms import randomised
from torch._dynamo.backends.debugging import aot_eager

from benchmarks.side_by_side import saved_bytes
from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.norm.dtn_maps import Windows
from mmlape.position import gabor_attention


@pytest.mark.parametrize(
    ('options', 'grids', 'num_graphs'),
    [
        (dict(pool=2), [Layout((5, 7), 1)], 1),
        # The second grid makes its sides symbolic; no later one is compiled again.
        pytest.param(
            {},
            [Layout(grid, 1) for grid in ((5, 7), (3, 9), (9, 11), (4, 4))],
            2,
            marks=pytest.mark.slow,
        ),
        # Windows may be full or not.
        pytest.param(
            dict(pool=2),
            [(6, 8), (4, 10), (5, 7), (9, 11)],
            2,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_compiles_as_one_graph(options, grids, num_graphs):
    norm = randomised(DTN(8, 2, **options))
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return aot_eager(module, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend=backend)
    for grid in grids:
        tokens = torch.randn(2, grid[0] * grid[1] + 1, 8, requires_grad=True)
        results = []
        for call in (norm, compiled):
            out = call(tokens, grid)
            gradients = torch.autograd.grad(out.square().sum(), [tokens, *norm.parameters()])
            results.append([out, *gradients])
        for eager, graph in zip(*results, strict=True):
            torch.testing.assert_close(graph, eager, atol=1e-4, rtol=1e-4)
    assert len(graphs) == num_graphs


@pytest.mark.parametrize('options', [dict(), dict(pool=2), dict(stabilize=False)], ids=str)
def test_vmap_over_images(options):
    norm, tokens = randomised(DTN(8, 2, **options)), torch.randn(3, 13, 8)
    mapped = torch.vmap(lambda image: norm(image[None], (3, 4))[0])(tokens)
    torch.testing.assert_close(mapped, norm(tokens, (3, 4)))


def test_vmap_over_stacked_parameters():
    norms = [randomised(DTN(8, 2)) for _ in range(3)]
    tokens, layout = torch.randn(2, 13, 8), Layout((3, 4), 1)
    state, _buffers = torch.func.stack_module_state(norms)

    def call(parameters):
        return torch.func.functional_call(norms[0], parameters, (tokens, layout))

    expected = torch.stack([norm(tokens, layout) for norm in norms])
    torch.testing.assert_close(torch.vmap(call)(state), expected)


@pytest.mark.parametrize('options', [dict(), dict(pool=2)], ids=str)
def test_func_grad_is_autograd(options):
    norm = randomised(DTN(8, 2, **options)).double()
    tokens = torch.randn(2, 13, 8, dtype=torch.float64, requires_grad=True)
    parameters = dict(norm.named_parameters())

    def loss(tokens, parameters):
        return torch.func.functional_call(norm, parameters, (tokens, (3, 4))).square().sum()

    grad, grads = torch.func.grad(loss, argnums=(0, 1))(tokens, parameters)
    expected = torch.autograd.grad(loss(tokens, parameters), [tokens, *parameters.values()])
    torch.testing.assert_close([grad, *grads.values()], list(expected))


def test_func_grad_of_each_image():
    norm, tokens = randomised(DTN(8, 2)), torch.randn(3, 12, 8)

    def loss(image):
        return norm(image[None], (3, 4)).square().sum()

    separate = torch.stack([torch.func.grad(loss)(image) for image in tokens])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(tokens), separate)


def test_nothing_of_a_transform_is_kept():
    """A tensor that is made inside of one ends with it."""
    gabor_attention.grid_offsets.cache.clear()
    norm = DTN(8, 2)
    torch.func.grad(lambda tokens: norm(tokens, (2, 3)).sum())(torch.randn(1, 6, 8))
    assert len(gabor_attention.grid_offsets.cache) == 0


@pytest.mark.parametrize('pool', [1, 2, 3])
@pytest.mark.parametrize('grid', [(6, 12), (7, 11), (2, 5)], ids=str)
def test_windows_by_products_are_windows_by_views(pool, grid):
    """They hold the same tokens, at the bottom and right too; views serve full cells alone."""
    windows, even = Windows.of(grid, pool), not (grid[0] % pool or grid[1] % pool)
    tokens = torch.randn(2, grid[0] * grid[1], 3, 4, dtype=torch.float64, requires_grad=True)
    assert windows.by_products is not even
    results = []
    for each in (windows, windows._replace(by_products=True)):
        view = each.view(tokens)
        cells = each.mean(view)
        assert cells.shape[1:3] == each.cells
        out = (view - each.spread(cells)).reshape(tokens.shape)
        summed = each.mean(view, total=True)
        (grad,) = torch.autograd.grad(out.square().sum() + summed.cos().sum(), tokens)
        results.append((cells, summed, out, grad))
    for view, product in zip(*results, strict=True):
        torch.testing.assert_close(view, product)


@pytest.mark.parametrize('options', [dict(), dict(pool=2)], ids=str)
def test_training_saves_the_input_alone(options):
    """It is computed again in the backward pass."""
    norm, x = DTN(16, 2, **options), torch.randn(2, 144, 16, requires_grad=True)
    assert saved_bytes(lambda: norm(x, (12, 12))) < 2 * x.numel() * 4


def test_second_derivatives():
    norm = randomised(DTN(4, 2, stabilize=False)).double()
    tokens = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: norm(x, (2, 3)), tokens)
