"""Products along an axis, with and without the weights that are zero."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.norm.dtn_maps import _LONG, axis_product, map_gradient, without_traces

# a row of blocks that is cut, one axis that is short
LENGTHS = (5, _LONG, _LONG + 13)


def maps_of(kind, length):
    place = torch.arange(length, dtype=torch.float64)
    offsets = place[:, None] - place
    scores = {
        'near': torch.stack([-(offsets**2), -((offsets - 3) ** 2)]),
        'far': torch.stack([offsets**2, offsets**2 + offsets]),
        'everywhere': torch.zeros(2, length, length),
        'one for all': -(offsets**2)[None],
    }[kind]
    return without_traces(scores.double().softmax(dim=-1).float()).double()


@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize('kind', ['near', 'far', 'everywhere', 'one for all'])
def test_is_the_product(kind, length):
    maps = maps_of(kind, length)
    x, grad = torch.randn(2, 2, 2, length, 3, 2, dtype=torch.float64)
    expected = torch.einsum('gij,mgj...->mgi...', maps.expand(2, -1, -1), x)
    for out in (None, torch.full_like(x, torch.nan)):
        torch.testing.assert_close(axis_product(maps, x, out), expected)
    turned = torch.einsum('gji,mgj...->mgi...', maps.expand(2, -1, -1), x)
    torch.testing.assert_close(axis_product(maps.mT, x), turned)

    gradient = torch.einsum('mgiab,mgjab->gij', grad, x)
    kept = maps.expand(2, -1, -1) != 0
    torch.testing.assert_close(map_gradient(maps, grad, x)[kept], gradient[kept])


def test_weights_next_to_nothing_are_zero():
    row, column = (without_traces(maps) for maps in DTN(8, 4).axis_maps((14, 40)))
    for maps in (row, column):
        assert maps[maps != 0].min() > 1e-19
        torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:2]))
    assert (column == 0).float().mean() > 0.5


def test_long_axes_are_multiplied_where_weights_are():
    """DTN at 8 x 320 with eq. 7, whose heads see some ten cells around."""
    norm, tokens = DTN(8, 4), torch.randn(1, 8 * 320, 8)
    with FlopCounterMode(display=False) as counter:
        norm(tokens, (8, 320))
    dense = 2 * 2 * tokens.numel() * (8 + 320)
    assert counter.get_total_flops() < dense / 4


@pytest.mark.parametrize('options', [dict(), dict(position_init='random'), dict(pool=2)], ids=str)
def test_gradients_on_a_long_grid(options):
    """Compared with plain operators, which know of no ranges."""
    norm = DTN(4, 2, **options).double()
    x = torch.randn(1, 3 * 2 * _LONG, 4, dtype=torch.float64, requires_grad=True)
    grid, weights = (3, 2 * _LONG), torch.randn(1, 3 * 2 * _LONG, 4, dtype=torch.float64)
    mask = torch.ones(1, x.shape[1], dtype=torch.bool)
    results = [
        torch.autograd.grad(
            (norm(x, Layout(grid, mask=m)) * weights).sum(), [x, *norm.parameters()]
        )
        for m in (None, mask)
    ]
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)
