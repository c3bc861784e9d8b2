"""Pictures show the numbers of made-up results: maps, scales, lines and titles."""

import numpy as np
import pytest

from mmlape.research.analysis import (
    draw_class_attention,
    draw_correlations,
    draw_distances,
    draw_embedding,
    draw_flow,
    draw_gabor_fit,
    draw_grids,
    draw_layers,
    draw_patch_order,
    draw_position_alone,
    draw_projections,
    draw_ratios,
    draw_sum,
    draw_variation,
)
from mmlape.research.analysis.attention import AttentionDistances, ClassAttention
from mmlape.research.analysis.dtn import BEFORE, Projection, RatioCourse, TokenVariation
from mmlape.research.analysis.flow import PatchOrder, PositionFlow
from mmlape.research.analysis.gabor import ChannelKinds, GaborFit
from mmlape.research.analysis.position import Correlations, EmbeddingTable


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def maps_of(figure):
    """Titles, values and scales of the maps of a figure."""
    shown = [axes for axes in figure.axes if axes.images]
    return [
        (axes.get_title(), axes.images[0].get_array(), axes.images[0].get_clim()) for axes in shown
    ]


def test_the_scale_of_correlations_begins_at_the_least(rng):
    matrices, maps = rng.uniform(-0.3, 0.9, (2, 6, 6)), rng.uniform(-0.2, 0.9, (2, 2, 3))
    maps[0, 0, 0] = np.nan
    found = Correlations('blocks', (2, 3), (1, 2), 0, ('a', 'b'), matrices, maps, 'stream')
    scales = {scale for *_, scale in maps_of(draw_correlations(found))}
    assert scales == {(matrices.min(), 1)}


def test_the_last_layer_of_each_state_on_one_scale(rng):
    image, shuffled = rng.random((2, 4, 6))
    states = {
        name: PatchOrder((2, 2), np.arange(4), image, shuffled, rng.random((3, 2, 2)))
        for name in ('without', 'with')
    }
    last = {name: state.differences[-1] for name, state in states.items()}
    *photos, first, second = maps_of(draw_patch_order(states))
    assert [values.tolist() for _, values, _ in photos] == [image.tolist(), shuffled.tolist()]
    for (title, values, scale), (name, expected) in zip((first, second), last.items(), strict=True):
        assert title == f'{name}: {expected.mean():.2g}' and np.array_equal(values, expected)
        assert scale == (0, max(each.max() for each in last.values()))


def test_a_line_divides_prefix_rows_from_the_grid(rng):
    axes = draw_embedding(EmbeddingTable('blocks', (2, 3), 1, rng.random((1, 7, 4)))).axes[0]
    assert [*axes.lines[0].get_ydata()] == [
        0.5,
        0.5,
    ] and axes.get_title() == '1 prefix + 2 x 3 tokens'


def test_the_best_fitted_of_each_kind_beside_their_maps(rng):
    maps, fitted = rng.random((2, 6, 2, 3))
    r2 = np.array([0.1, 0.5, 0.9, 0.3, 0.8, 0.7])
    fit = GaborFit('G', None, None, np.zeros(6), fitted, r2, r2, 0.5)
    names = np.array(['box', 'box', 'box', 'box', 'box', 'striped'])
    figure = draw_gabor_fit(maps, fit, ChannelKinds(names, *[r2] * 4))
    shown = maps_of(figure)
    assert [title for title, *_ in shown[:5]] == ['5 striped', '2 box', '4 box', '1 box', '3 box']
    for (_, learned, scale), (_, below, same), channel in zip(
        shown[:5], shown[5:], (5, 2, 4, 1, 3), strict=True
    ):
        mean = maps[channel].mean()
        assert np.allclose(learned, maps[channel] - mean) and scale == same
        assert np.allclose(below, fitted[channel] - mean)


def test_the_same_channel_at_several_grids_on_one_scale(rng):
    tables = [
        EmbeddingTable('blocks', (2, 2), 0, rng.random((1, 4, 3))),
        EmbeddingTable('blocks', (2, 3), 0, 5 * rng.random((1, 6, 3))),
    ]
    figure = draw_grids(tables, [rng.random((2, 2)), rng.random((2, 3))], [1])
    largest = max(table.maps()[1].max() for table in tables)
    assert [scale for *_, scale in maps_of(figure)[2:]] == [(-largest, largest)] * 2


def test_heads_and_equal_weights_by_layer(rng):
    found = AttentionDistances(
        'blocks', np.array([0, 2]), rng.random((2, 2, 3)), rng.random((2, 2)), np.full((2, 2), 4)
    )
    axes = draw_distances([found]).axes[0]
    for layer, (heads, equal) in enumerate(
        zip(axes.collections[::2], axes.collections[1::2], strict=True)
    ):
        assert np.allclose(heads.get_offsets()[:, 1], found.mean[layer])
        assert abs(heads.get_offsets()[:, 0] - found.layers[layer]).max() < 0.4
        (line,) = equal.get_segments()
        assert np.allclose(line[:, 1], found.uniform.mean(0)[layer])


def test_weights_over_equal_attention_and_their_mean(rng):
    maps, image = rng.random((1, 2, 2, 3)), rng.random((4, 6))
    found = ClassAttention('blocks', np.array([3]), maps, rng.random((1, 2, 4)), image)
    _, *heads = maps_of(draw_class_attention([found]))
    relative = maps[0] * (2 * 3 + 4)
    assert [title for title, *_ in heads] == ['head 0', 'head 1', 'mean of heads']
    for (_, values, scale), expected in zip(heads, [*relative, relative.mean(0)], strict=True):
        assert np.allclose(values, expected)
        assert scale == (0, pytest.approx(np.percentile(relative, 99)))


def test_ratios_over_the_iterations(rng):
    steps = np.array([0, 50, 200])
    values = {(layer, kind): rng.random((3, 2)) for layer in 'ab' for kind in ('mean', 'var')}
    places = {axes.get_title(): axes for axes in draw_ratios(RatioCourse(steps, values)).axes}
    for (layer, kind), ratios in values.items():
        axes = places[f'{layer}\n{"mean" if kind == "mean" else "variance"}']
        for line, expected in zip(axes.lines, ratios.T, strict=True):
            assert np.array_equal(line.get_xdata(), steps)
            assert np.array_equal(line.get_ydata(), expected)
    tops = [places[f'a\n{of}'].get_position().y0 for of in ('mean', 'variance')]
    assert tops[0] > tops[1]


def test_medians_and_quartiles_of_variation(rng):
    found = TokenVariation('blocks', 'norm1', np.arange(3), ('DTN', 'LN'), rng.random((2, 3, 9)))
    axes = draw_variation([found]).axes[0]
    for number, (line, band) in enumerate(zip(axes.lines, axes.collections, strict=True)):
        low, median, high = found.quartiles[number].T
        assert np.array_equal(line.get_ydata(), median)
        corners = band.get_paths()[0].vertices[:, 1]
        assert (corners.min(), corners.max()) == (low.min(), high.max())


def test_rows_of_the_image_as_colours_and_one_range_after_norms(rng):
    versions = {
        name: Projection(scale * rng.normal(size=(7, 2)), np.array([0.5, 0.25]), 1.0, 1)
        for name, scale in ((BEFORE, 9), ('after LN', 1), ('after DTN', 3))
    }
    figure = draw_projections({'layer 0': versions}, (2, 3))
    before, first, second, bar = figure.axes
    assert before.get_title() == f'{BEFORE}: 75%, 1'
    cells, prefix = first.collections
    assert cells.get_array().tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(prefix.get_offsets(), versions['after LN'].points[:1])
    limits = [axes.get_xlim()[1] for axes in (before, first, second)]
    most = [1.05 * abs(each.points).max() for each in versions.values()]
    assert limits == pytest.approx([most[0], max(most[1:]), max(most[1:])])
    assert bar.yaxis_inverted()  # the top of the image is at the top


def test_pictures_of_the_flow(rng):
    flow = PositionFlow(
        'blocks', 0, *(rng.normal(size=(4, 2, 3)) for _ in range(9)), rng.normal(size=(3, 4, 2, 3))
    )
    shown = maps_of(draw_layers(flow, [2, 1]))
    assert [title for title, *_ in shown] == ['before', 'layer 0', 'layer 1', '', '', '']
    assert all(np.array_equal(shown[3 + n][1], flow.layers[n][1]) for n in range(3))
    roles = ('position', 'position_query', 'position_key', 'position_value')
    shown = maps_of(draw_position_alone(flow, [3]))
    assert [title for title, *_ in shown] == ['position', 'query', 'key', 'value']
    for (_, values, _), role in zip(shown, roles, strict=True):
        assert np.array_equal(values, getattr(flow, role)[3])
    order = np.argsort(-flow.likeness('summed')).tolist()
    for draw, default in ((draw_layers, [order[0], order[-1]]), (draw_position_alone, order[:3])):
        found, expected = maps_of(draw(flow)), maps_of(draw(flow, default))
        assert np.array_equal([each[1] for each in found], [each[1] for each in expected])
    flow.position[:] *= 9
    largest = max(abs(each).max() for each in (flow.patches, flow.position, flow.summed))
    shown = maps_of(draw_sum(flow))
    assert {scale for *_, scale in shown} == {(-largest, largest)}
    assert np.array_equal(shown[1][1], flow.position.reshape(4, -1).T)
    titles = [title for title, *_ in maps_of(draw_flow(flow, count=1))][:3]
    most = np.argmax(flow.likeness('summed'))
    likeness = flow.likeness('summed')[most]
    assert titles == [f'patches {most}', f'position {most}', f'summed {most}: {likeness:.2f}']
