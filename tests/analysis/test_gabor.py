"""Fitting a Gabor position to a table, and the four kinds of channels."""

import numpy as np
import pytest
import torch

from mmlape.position import GaborPosition
from mmlape.research.analysis import classify_channels, fit_gabor_position, fit_maps


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def standardised(maps):
    axes = tuple(range(1, maps.ndim))
    maps = maps - maps.mean(axis=axes, keepdims=True)
    return maps / maps.std(axis=axes, keepdims=True)


def waves(rng, count, length):
    """Gabor functions of one axis, variance 1, from waves of a few cells to a slope."""
    t = np.linspace(-1, 1, length)
    width, phase = rng.uniform(0.4, 2, (count, 1)), rng.uniform(-np.pi, np.pi, (count, 1))
    wavelength = np.exp(rng.uniform(np.log(0.7), np.log(4), (count, 1)))
    wave = np.exp(-0.5 * (t / width) ** 2) * np.cos(2 * np.pi * t / wavelength + phase)
    return standardised(wave)


def channels(kind, rng, count, grid):
    height, width = grid
    if kind == 'chaos':
        return rng.standard_normal((count, *grid))
    across, down = waves(rng, count, width)[:, None], waves(rng, count, height)[:, :, None]
    if kind == 'striped':
        upright = rng.random((count, 1, 1)) < 0.5
        return np.where(upright, across + 0 * down, down + 0 * across)
    if kind == 'raster':
        return standardised(rng.uniform(0.65, 1.5, (count, 1, 1)) * across + down)
    maps = np.zeros((count, *grid))
    for edge in (maps[:, :, 0], maps[:, :, -1], maps[:, 0], maps[:, -1]):
        edge += rng.uniform(0.5, 1, (count, 1))
    return standardised(maps) * rng.choice([-1, 1], (count, 1, 1))


@pytest.mark.parametrize('kind', ['chaos', 'raster', 'striped', 'box'])
@pytest.mark.parametrize(('noise', 'least'), [(0.0, 12), (0.5, 11)])
def test_each_kind_is_recognised(kind, noise, least, rng):
    maps = channels(kind, rng, 12, (9, 14))
    maps += noise * rng.standard_normal(maps.shape)
    assert classify_channels(maps).counts()[kind] >= least


def test_single_channels():
    """What is no sum of both axes is chaos, a marked edge is a box, and a slope is not."""
    y, x = np.mgrid[-1:1:14j, -1:1:14j]
    oblique, product = np.cos(8 * (x + y)), np.sin(6 * x) * np.sin(6 * y)
    constant = 0.1 + 1e-8 * x  # but for what float32 rounds
    edge = (x == -1).astype(float)
    kinds = classify_channels(np.stack([oblique, product, constant, edge, x])).kinds
    assert kinds.tolist() == ['chaos'] * 3 + ['box', 'striped']
    with pytest.raises(ValueError, match=r'at least 8 cells, got the shape \(3, 7, 14\)'):
        classify_channels(np.zeros((3, 7, 14)))


def test_figures_that_decide(rng):
    """Shares of the variance, on the shortest grid, whose sides have different numbers of cells."""
    grid = (8, 11)
    maps = channels('raster', rng, 4, grid) + 0.5 * rng.standard_normal((4, *grid))
    maps -= maps.mean((1, 2), keepdims=True)
    found = classify_channels(maps)
    across, down = maps.mean(1), maps.mean(2)
    both = across[:, None] + down[:, :, None]
    noise = np.square(maps - both).sum((1, 2)) / (7 * 10)
    assert np.allclose(found.pattern, 1 - noise / maps.var((1, 2), ddof=1))
    cleaned = 10 * (8 * across.var(1, ddof=1) - noise), 7 * (11 * down.var(1, ddof=1) - noise)
    assert np.allclose(found.one_axis, np.max(cleaned, 0) / np.sum(cleaned, 0))
    for shares, variant in ((found.edges, 'E'), (found.gabor, 'G')):
        error = np.square(both - fit_maps(maps, variant).maps).sum((1, 2))
        assert np.allclose(shares, 1 - error / np.square(both).sum((1, 2)))


@pytest.mark.parametrize('variant', ['G+E', 'G', 'E'])
def test_a_gabor_position_is_found_again(variant):
    source = GaborPosition(48, (14, 14), 1, variant=variant)
    with torch.no_grad():
        position, (fit,) = fit_gabor_position(source((14, 14)), (14, 14), 1, variant)
        assert fit.r2.min() > 0.999 and fit.total_r2 > 0.9999
        assert np.allclose(fit.ceiling, 1)
        # The module says what the fit says, prefix rows are taken over, and other grids agree too.
        assert torch.allclose(position((14, 14)), source((14, 14)), atol=1e-3)
        assert torch.equal(position((14, 14))[:, :1], source((14, 14))[:, :1])
        maps = position((14, 14))[0, 1:].T.reshape(-1, 14, 14).numpy()
        assert np.allclose(maps, fit.maps, atol=1e-5)
        assert torch.allclose(position((21, 9)), source((21, 9)), atol=3e-3)


def test_the_ceiling_is_reached_by_no_fit_and_noise_is_not_explained(rng):
    maps = rng.standard_normal((12, 14, 14))
    fit = fit_maps(maps)
    assert (fit.r2 <= fit.ceiling + 1e-9).all() and np.median(fit.r2) < 0.12
    # The ceiling is the R^2 of the best sum of a function of x and one of y.
    additive = maps.mean(1, keepdims=True) + maps.mean(2, keepdims=True)
    additive -= maps.mean((1, 2), keepdims=True)
    error = np.square(maps - additive).sum((1, 2))
    total = np.square(maps - maps.mean((1, 2), keepdims=True)).sum((1, 2))
    assert np.allclose(fit.ceiling, 1 - error / total)
    error = np.square(maps - fit.maps).sum()
    assert fit.total_r2 == pytest.approx(1 - error / total.sum())


def test_the_search_is_as_good_as_a_gradient_descent(rng):
    """A slow, independent fit from many starts finds nothing better."""
    maps = channels('raster', rng, 4, (10, 10)) + 0.5 * rng.standard_normal((4, 10, 10))
    ours = fit_maps(maps).r2
    target = torch.from_numpy(maps).flatten(1)
    torch.manual_seed(0)
    module = GaborPosition(4, (10, 10), num_tables=4).double()  # a start for each table
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(300):
        error = (module((10, 10)).mT - target).square().sum(dim=2)
        optimizer.zero_grad()
        error.sum().backward()
        optimizer.step()
    best = error.amin(dim=0) / (target - target.mean(1, keepdim=True)).square().sum(1)
    assert (ours > 1 - best.detach().numpy() - 0.01).all()


@pytest.mark.parametrize('grid', [(1, 1), (1, 6), (2, 3)])
def test_tiny_grids_and_constant_channels(grid):
    table = torch.zeros(2, grid[0] * grid[1], 4)
    table[1] = torch.randn(table.shape[1], 4)
    table[:, :, 2] = 0.1
    position, fits = fit_gabor_position(table, grid)
    assert position(grid).isfinite().all() and len(fits) == 2
    assert torch.allclose(position(grid)[:, :, 2], table[:, :, 2], atol=1e-6)
    assert fits[0].r2.tolist() == [1, 1, 1, 1]


def test_wrong_tables():
    table = torch.zeros(1, 9, 4)
    for values, options, text in (
        (table, dict(grid=(3, 4)), r'0 \+ 3 x 4 = 12 rows'),
        (table, dict(grid=3, num_prefix_tokens=1), r'1 \+ 3 x 3 = 10 rows'),
        (table, dict(grid=3, variant='gabor'), 'variant must be one of'),
        (table + torch.nan, dict(grid=3), 'maps must be finite'),
    ):
        with pytest.raises(ValueError, match=text):
            fit_gabor_position(values, **options)
