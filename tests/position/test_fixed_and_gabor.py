"""Sinusoids, no position, Gabor functions, and relative bias."""

import copy
import math

import pytest
import torch

from mmlape.layout import Layout
from mmlape.position import GaborPosition, NoPosition, RelativePositionBias, SinusoidalPosition
from mmlape.position.fixed_embeddings import _sinusoid_table
from mmlape.position.relative_bias import _offsets


@pytest.mark.parametrize('axes', [1, 2])
def test_extrapolation_and_resizing(axes):
    grid, other = (4, 4), (8, 6)
    options = dict(embed_dims=16, grid=grid, num_prefix_tokens=1, axes=axes)
    counted = SinusoidalPosition(**options)
    resized = SinusoidalPosition(**options, other_grids='resize')
    assert torch.equal(counted(grid), resized(grid))
    assert counted(other).shape == resized(other).shape == (1, 49, 16)
    assert torch.equal(counted(other)[:, :1], resized(other)[:, :1])
    assert not torch.allclose(counted(other), resized(other), atol=0.1)


def test_fixed_embeddings_have_no_state():
    for position in (SinusoidalPosition(8, (2, 2)), NoPosition(8, (2, 2))):
        assert not list(position.parameters()) and not position.state_dict()
        assert position.double()((3, 1)).dtype == torch.float64
    assert NoPosition(8, (2, 2), 1)((3, 1)).abs().sum() == 0


def test_sinusoids_are_made_once_per_grid():
    _sinusoid_table.cache.clear()
    position = SinusoidalPosition(8, (2, 2), axes=2)
    for _ in range(3):
        position((5, 3))
    assert len(_sinusoid_table.cache) == 1


@pytest.mark.parametrize('grid', [(1, 1), (1, 5), (4, 6)])
@pytest.mark.parametrize('num_tables', [1, 3])
def test_gabor_equals_its_formula(grid, num_tables):
    """Eq. 8 and 9, cell by cell."""
    position = GaborPosition(4, grid, num_prefix_tokens=1, num_tables=num_tables)
    torch.nn.init.normal_(position.bias)
    got = position(grid)
    assert got.shape == (num_tables, 1 + grid[0] * grid[1], 4)
    xs, ys = ([2 * i / (n - 1) - 1 if n > 1 else 0.0 for i in range(n)] for n in grid[::-1])
    left, right, top, bottom = position.edges.unbind(1)
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            expected = position.bias[:, 0]
            for gabor, t in ((position.gabor_x, x), (position.gabor_y, y)):
                wave = torch.cos(2 * math.pi * t / gabor.wavelength + gabor.phase)
                envelope = torch.exp(-(t**2) / (2 * gabor.width**2))
                expected = expected + (gabor.weight * envelope * wave)[:, 0]
            expected = expected + left * (column == 0) + right * (column == grid[1] - 1)
            expected = expected + top * (row == 0) + bottom * (row == grid[0] - 1)
            assert torch.allclose(got[:, 1 + row * grid[1] + column], expected, atol=1e-5)


@pytest.mark.parametrize(
    ('options', 'per_channel'),
    [({}, 14), (dict(variant='G'), 10), (dict(variant='E'), 6), (dict(with_bias=False), 13)],
    ids=str,
)
def test_gabor_parameters_per_channel(options, per_channel):
    position = GaborPosition(5, (2, 2), num_prefix_tokens=1, **options)
    assert sum(p.numel() for p in position.parameters()) == 5 * per_channel
    whole = GaborPosition(5, (2, 2), 1, variant=options.get('variant', 'G+E'))
    whole.load_state_dict(position.state_dict(), strict=False)
    assert torch.equal(position((3, 4)), whole((3, 4)))  # a bias starts at zero


def test_gabor_in_half_precision_knows_its_angles():
    """The embedding of rounded parameters, rounded once."""
    half = GaborPosition(64, (14, 14)).bfloat16()
    expected = copy.deepcopy(half).float()((14, 14))
    error = half((14, 14)).float() - expected
    assert error.std() < 0.01 * expected.std()


def test_relative_bias_makes_no_index_of_all_pairs():
    """A grid of 50 x 84 cells would take 148 MB."""
    _offsets.cache.clear()
    RelativePositionBias(4, 1, (12, 20)).bias(Layout((12, 20)))
    assert 0 < _offsets.cache.num_bytes() <= 8 * (12 * 12 + 20 * 20)
