"""DTN in plain PyTorch: under ``torch.func``, how windows are cut, what is saved for the backward pass."""

import pytest
import torch
from dtn_norms import randomised

from benchmarks.side_by_side import saved_bytes
from mmlape.norm import DTN
from mmlape.norm.dtn_maps import Windows
from mmlape.position import gabor_attention


@pytest.mark.parametrize('options', [dict(), dict(pool=2)], ids=str)
def test_func_grad_of_each_image(options):
    norm, tokens = randomised(DTN(8, 2, **options)), torch.randn(3, 13, 8, requires_grad=True)

    def loss(image):
        return norm(image[None], (3, 4)).square().sum()

    (separate,) = torch.autograd.grad(sum(map(loss, tokens)), tokens)
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
    """They hold the same tokens, at the bottom and right too; views are for full cells only."""
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
