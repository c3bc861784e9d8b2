"""Position inside the attention, shown: the very scores that the layers add, and what they are made from."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_adapter, build_pvt, build_vit, randomise

from mmlape.analysis import (
    attention_position_stages,
    attention_tables,
    draw_embedding,
    draw_scores,
    position_scores,
)

GABOR = dict(type='mmlape.GaborAttention')
RELATIVE = dict(type='mmlape.RelativePositionBias')
GRID = (3, 5)


def stage_of(config, **options):
    model = randomise(build_vit(attention_position=config, **options))
    (stage,) = attention_position_stages(model, with_scores=True)
    return model, stage


def added_in_the_network(model, grid, monkeypatch):
    """Per layer, softmax argument with position less without: ``(heads, N, N)``."""
    seen, original = [], F.scaled_dot_product_attention

    def listen(query, key, value, bias=None, dropout=0.0, scale=None):
        width = model.embed_dims // model.arch['num_heads']
        beside = scale * query[..., width:] @ key[..., width:].mT
        seen.append((beside if bias is None else beside + bias)[0])
        return original(query, key, value, bias, dropout, scale=scale)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(F, 'scaled_dot_product_attention', listen)
        model(torch.randn(1, 3, 16 * grid[0], 16 * grid[1]))
    return torch.stack(seen).numpy()


@pytest.mark.parametrize(
    'config',
    [RELATIVE, dict(RELATIVE, layer_norm=True), GABOR, dict(GABOR, query_key='LE', channels=3)],
)
def test_shows_what_the_network_adds(config, monkeypatch):
    model, stage = stage_of(config)
    added = added_in_the_network(model, GRID, monkeypatch)
    (found,) = position_scores(stage, GRID, token=(2, 1), with_prefix=True)
    assert found.names == tuple(f'layer {layer}' for layer in range(4)) and found.num_prefix == 1
    assert np.allclose(found.matrices, added.mean(axis=1), atol=1e-5)
    assert np.allclose(found.maps, added.mean(axis=1)[:, 1 + 11, 1:].reshape(4, *GRID), atol=1e-5)
    (single,) = position_scores(stage, GRID, token=0, layers=[1, 3], head=2)
    assert single.names == ('layer 1', 'layer 3') and single.num_prefix == 0
    assert np.allclose(single.matrices, added[[1, 3], 2, 1:, 1:], atol=1e-5)
    assert np.allclose(single.maps, added[[1, 3], 2, 0, 1:].reshape(2, *GRID), atol=1e-5)


def test_windows_of_a_bias_have_their_own_pictures_and_places_do_not():
    windows = dict(window_size=[2, None, (2, 3), 2])
    _, stage = stage_of(RELATIVE, **windows)
    shown = {found.grid: found.names for found in position_scores(stage, (6, 6))}
    assert shown == {
        (2, 2): ('layer 0', 'layer 3'),
        (6, 6): ('layer 1',),
        (2, 3): ('layer 2',),
    }
    names = {table.stage: table.grid for table in attention_tables(stage)}
    assert names == {
        'blocks.bias.3x3': (3, 3),
        'blocks.bias.7x7': (7, 7),
        'blocks.bias.3x5': (3, 5),
    }
    _, stage = stage_of(GABOR, **windows)
    assert [found.grid for found in position_scores(stage, (6, 6))] == [(6, 6)]


def test_the_tables_of_a_bias_are_maps_around_the_query():
    _, stage = stage_of(RELATIVE)
    (table,) = attention_tables(stage)
    (found,) = position_scores(stage, token=(1, 2), head=0)
    around = table.maps(2)[0]  # layer 2, head 0, offsets -3..3
    assert table.columns == 'head' and around.shape == (7, 7)
    assert np.allclose(found.maps[2], around[3 - 1 : 7 - 1, 3 - 2 : 7 - 2])


def test_the_tables_of_channels():
    model, stage = stage_of(dict(GABOR, layers=[1, 2], channels=2))
    tables = {table.stage: table for table in attention_tables(stage, GRID)}
    assert list(tables) == ['blocks.query', 'blocks.key', 'blocks.value']
    assert [t.tables.shape for t in tables.values()] == [(2, 16, 6), (2, 16, 6), (2, 16, 24)]
    key = model.blocks[2].attn.position.key(GRID)[0].detach().numpy()
    assert np.array_equal(tables['blocks.key'].table(1), key)
    without = attention_tables(stage, GRID, with_prefix=False)[0]
    assert without.num_prefix == 0 and np.array_equal(
        without.table(), tables['blocks.query'].table()[1:]
    )
    assert draw_embedding(without).axes[0].get_xlabel() == 'channel'


def test_which_stages():
    inside = build_adapter(dict(attention_position=GABOR))
    assert [s.name for s in attention_position_stages(inside)] == ['vit.blocks']
    for model in (build_vit(), build_pvt()):
        assert attention_position_stages(model) == []
    depends_on_the_image = build_vit(attention_position=dict(GABOR, parts='2,3'))
    assert attention_position_stages(depends_on_the_image, with_scores=True) == []
    (stage,) = attention_position_stages(depends_on_the_image)
    with pytest.raises(ValueError, match="none of these layers of 'blocks' has a position in its"):
        position_scores(stage)


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        (dict(head=3), 'head must be 0 to 2, got 3'),
        (dict(token=(9, 0)), 'row of the token must be 0 to 3'),
        (dict(layers=[0]), 'none of these layers'),
        (dict(layers=7), 'layers must be 1 to 4'),
        (dict(grid=(80, 90)), r'7201 x 7201 tokens and 3 heads do not fit'),
    ],
)
def test_mistakes(options, match):
    _, stage = stage_of(dict(GABOR, layers=[1]))
    with pytest.raises(ValueError, match=match):
        position_scores(stage, **options)


def test_drawing():
    _, stage = stage_of(GABOR)
    (found,) = position_scores(stage, GRID, token=(2, 1))
    figure = draw_scores(found)
    shown = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(shown) == 2 * 4 and all(
        any(np.array_equal(image.get_array(), values) for image in shown)
        for values in (*found.matrices, *found.maps)
    )
    limit = np.abs(found.matrices).max()
    assert {image.get_clim() for image in shown} == {(-limit, limit)}
