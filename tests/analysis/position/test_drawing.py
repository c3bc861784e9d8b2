"""Tables as arrays, and that every picture shows them."""

import backbone_variants as variants
import matplotlib
import numpy as np
import pytest
from PIL import Image

from mmlape.analysis import (
    classify_channels,
    draw_channels,
    draw_correlations,
    draw_embedding,
    draw_gabor_fit,
    draw_grids,
    embedding_table,
    fit_maps,
    pick_channels,
    pick_stage,
    position_correlations,
    save_figure,
)

GRID = (3, 5)


@pytest.fixture
def stage():
    return pick_stage(variants.build_vit(position=dict(type='mmlape.SinusoidalPosition')))


def images(figure):
    """The arrays that a figure shows, by the title of their panel."""
    return [
        (axes.get_title(), np.ma.filled(axes.images[0].get_array(), np.nan))
        for axes in figure.axes
        if axes.images
    ]


def test_tables_and_maps(stage):
    table = embedding_table(stage, GRID)
    assert table.tables.shape == (1, 16, 24) and table.num_prefix == 1
    assert np.array_equal(table.tables[0], stage.position.embedding(GRID)[0].numpy())
    assert table.maps().shape == (24, 3, 5)
    assert table.maps()[7, 2, 1] == table.tables[0, 1 + 2 * 5 + 1, 7]
    without = embedding_table(stage, GRID, with_prefix=False)
    assert without.num_prefix == 0 and np.array_equal(without.maps(), table.maps())
    with pytest.raises(ValueError, match='table must be 0 to 0, got 1'):
        table.maps(1)


def test_tables_of_every_layer():
    stage = pick_stage(variants.build_vit(joining=dict(type='mmlape.UnsharedJoining')))
    table = embedding_table(stage, GRID)
    assert table.tables.shape == (4, 16, 24)
    assert np.array_equal(images(draw_embedding(table, 3))[0][1], table.tables[3])


def test_channels_that_are_shown():
    assert pick_channels(100, count=3) == [0, 50, 99] and pick_channels(2) == [0, 1]
    assert pick_channels(9, [4, 2]) == [4, 2]
    with pytest.raises(ValueError, match='channel must be 0 to 8, got 9'):
        pick_channels(9, [9])
    with pytest.raises(ValueError, match='at least one'):
        pick_channels(9, [])


def test_correlations_are_drawn_with_their_token(stage):
    found = position_correlations(stage, GRID, token=(2, 1))
    figure = draw_correlations(found)
    shown = images(figure)
    assert [title for title, _ in shown if title] == list(found.names)
    panels = [values for _, values in shown]
    for index in range(len(found.names)):
        assert any(np.array_equal(values, found.matrices[index]) for values in panels)
        assert any(np.array_equal(values, found.maps[index]) for values in panels)
    marks = [line.get_xydata()[0].tolist() for axes in figure.axes for line in axes.lines]
    assert marks == [[1, 2]] * len(found.names)


def test_more_layers_than_a_row_holds_and_nothing_but_undefined():
    arch = dict(variants.ARCH, depth=9)
    stage = pick_stage(variants.build_vit(arch=arch, position=dict(type='mmlape.NoPosition')))
    found = position_correlations(stage, GRID)
    assert np.isnan(found.matrices).all()
    assert len(images(draw_correlations(found))) == 2 * 10


def test_channel_maps_grids_and_fits(stage):
    table = embedding_table(stage, (8, 9))
    titles = dict(images(draw_channels(table, [3, 5], labels=['kind'] * 24)))
    assert np.array_equal(titles['5 kind'], table.maps()[5])

    tables = [embedding_table(stage, grid) for grid in (GRID, (8, 9))]
    maps = [position_correlations(stage, grid).maps[0] for grid in (GRID, (8, 9))]
    shown = images(draw_grids(tables, maps, [2]))
    assert [title for title, _ in shown] == ['3 x 5', '8 x 9', '', '']
    for (_, values), expected in zip(
        shown, [*maps, tables[0].maps()[2], tables[1].maps()[2]], strict=True
    ):
        assert np.array_equal(values, expected)

    learned = table.maps()
    fit, kinds = fit_maps(learned), classify_channels(learned)
    titled = dict(images(draw_gabor_fit(learned, fit, kinds, per_kind=2)))
    best = int(np.argmax(np.where(kinds.kinds == 'striped', fit.r2, -1)))
    assert np.allclose(titled[f'{best} striped'], learned[best] - learned[best].mean())
    assert len(images(draw_gabor_fit(learned, fit))) == 2 * 16


def test_a_saved_picture_is_a_small_palette_png_and_pyplot_is_left_alone(stage, tmp_path):
    backend = matplotlib.rcParams._get_backend_or_none()
    path = save_figure(draw_embedding(embedding_table(stage)), tmp_path / 'new/picture.png')
    with Image.open(path) as image:
        assert image.mode == 'P' and image.size == (800, 500)
        image.convert('RGB').load()
    assert [file.name for file in path.parent.iterdir()] == ['picture.png']
    assert matplotlib.rcParams._get_backend_or_none() == backend
