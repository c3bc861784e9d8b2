"""Position correlations, scores, tables and flow: the mathematics of the papers, for every kind of network."""

import backbone_variants as variants
import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from mmlape.apps.report import save_figure
from mmlape.position import JoinedPosition
from mmlape.research.analysis import (
    attention_position_stages,
    attention_tables,
    channel_likeness,
    cosine_matrix,
    draw_channels,
    draw_correlations,
    draw_embedding,
    draw_flow,
    draw_grids,
    draw_position_alone,
    embedding_table,
    layer_positions,
    pick_channels,
    plan_sources,
    position_correlations,
    position_flow,
    position_plan,
    position_scores,
    position_stages,
    token_row,
)
from mmlape.research.analysis.flow import ROLES, pick_extremes

SINUSOIDS = dict(type='mmlape.SinusoidalPosition')
GRID = (3, 5)


def trained(model):
    """As if trained: no norm's weight is 1, no bias 0."""
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight, 1, 0.3)
            torch.nn.init.normal_(module.bias, 0, 0.3)
    return model.eval()


def stage_of(**options):
    return position_stages(trained(variants.build_vit(**options)))[0]


def cosine(rows):
    """The plain definition, in torch."""
    rows = torch.as_tensor(rows)
    return F.cosine_similarity(rows[:, None], rows[None], dim=-1).numpy()


def test_eq_12():
    rows = torch.randn(7, 5).double()
    assert np.allclose(cosine_matrix(rows.numpy()), cosine(rows), atol=1e-6)
    rows[2] = 0
    matrix = cosine_matrix(rows.numpy())
    assert np.isnan(matrix[2]).all() and np.isnan(matrix[:, 2]).all()
    assert np.isfinite(np.delete(np.delete(matrix, 2, 0), 2, 1)).all()


@pytest.mark.parametrize('layer', [0, 3])
def test_default_joining_is_what_eq_6_isolates_whatever_the_image(layer):
    """LN(x + w) - lambda_1 LN(x) - lambda_3 beta = lambda_2 LN(w), and its correlation does not depend on x."""
    stage = stage_of()
    norm, w = stage.blocks[layer].norm1, stage.position.embedding(GRID)[0].detach()
    shown = position_correlations(stage, GRID, with_prefix=True).matrices[1 + layer]
    for seed in range(2):
        x = 0.5 * torch.randn(w.shape, generator=torch.Generator().manual_seed(seed))
        both, alone_x, alone_w = (t.std(dim=-1, keepdim=True, correction=0) for t in (x + w, x, w))
        with torch.no_grad():
            isolated = norm(x + w) - alone_x / both * norm(x)
            isolated -= (both - alone_x - alone_w) / both * norm.bias
        # eps of the norm, which eq. 6 leaves out, is seen where w is small.
        assert np.allclose(cosine(isolated.double()), shown, atol=2e-3)


@pytest.mark.parametrize('build', [variants.build_vit, variants.build_compact])
def test_default_joining_where_the_stream_itself_passes_norms(build):
    """CLIP's first norm, and the second one of Compact Transformers' blocks: image and position go through them by
    shares of their own, so what is left of the sum is all in the position's part."""
    stem = dict(pre_norm=True) if build is variants.build_vit else {}
    model = trained(build(joining=dict(type='mmlape.DefaultJoining'), **stem))
    (stage,) = position_stages(model)
    passed = [stage.first_norm] if stem else [block.norm2 for block in stage.blocks]
    w = stage.position.embedding(GRID)[0].detach().double()
    shown = position_correlations(stage, GRID, with_prefix=True)
    first = 0 if stem else 1
    for layer in range(first, len(stage.blocks)):
        through = w
        for norm in passed if stem else passed[:layer]:
            through = norm.weight * (through - through.mean(-1, keepdim=True))
        norm = stage.blocks[layer].norm1
        through = (through - through.mean(-1, keepdim=True)) / through.std(
            -1, keepdim=True, correction=0
        )
        expected = cosine((through * norm.weight + norm.bias).detach())
        assert np.allclose(expected, shown.matrices[1 + layer], atol=1e-3)
    (shared,) = position_stages(build(joining=dict(type='mmlape.SharedJoining'), **stem))
    if stem:  # whose norm stands before all that is added
        assert position_correlations(shared, GRID).names[1:] == shown.names[1:]
        return
    with pytest.raises(ValueError, match='added again to a stream that has passed a norm'):
        position_correlations(shared, GRID)


@pytest.mark.parametrize('progressive', [True, False])
def test_lape_is_the_plan_as_the_backbone_uses_it(progressive):
    stage = stage_of(joining=dict(type='mmlape.LaPE', progressive=progressive))
    found = position_correlations(stage, GRID, with_prefix=True)
    assert found.source == 'attention'
    position = embedding = stage.position.embedding(GRID)[0].detach()
    assert np.allclose(found.matrices[0], cosine(embedding), atol=1e-5)
    for layer, norm in enumerate(stage.position.joining.norms):
        with torch.no_grad():
            normed = norm(position)
        assert np.allclose(found.matrices[1 + layer], cosine(normed), atol=1e-5)
        position = normed if progressive else embedding


def test_unshared_joining_shows_the_sum_of_all_entries_so_far():
    stage = stage_of(joining=dict(type='mmlape.UnsharedJoining'))
    found = position_correlations(stage, GRID, with_prefix=True)
    assert found.names == ('layer 0', 'layer 1', 'layer 2', 'layer 3')  # no embedding for all
    with torch.no_grad():
        summed = stage.position.embedding(GRID).cumsum(dim=0)
        for layer, block in enumerate(stage.blocks):
            assert np.allclose(found.matrices[layer], cosine(block.norm1(summed[layer])), atol=1e-5)


def test_a_layer_that_norms_what_it_has_read_has_the_position_as_it_is():
    stage = stage_of(block=dict(type='mmlape.PostNormBlock'))
    for block in stage.blocks:
        torch.nn.init.normal_(block.norm1.weight)
    expected = cosine(stage.position.embedding(GRID)[0, 1:].detach())
    for matrix in position_correlations(stage, GRID).matrices:
        assert np.allclose(matrix, expected, atol=1e-5)


def test_a_token_without_position_has_no_correlation_whatever_the_norms_bias():
    stage = stage_of(position=dict(type='mmlape.SinusoidalPosition', axes=2))
    matrices = position_correlations(stage, GRID, with_prefix=True).matrices
    assert np.isnan(matrices[:, 0]).all() and np.isnan(matrices[:, :, 0]).all()
    assert np.isfinite(matrices[:, 1:, 1:]).all()


def test_layers_without_position_are_left_out():
    stage = stage_of(joining=dict(type='mmlape.LaPE', layers=[1, 3]))
    assert list(layer_positions(stage)) == ['embedding', 'layer 1', 'layer 3']
    assert list(layer_positions(stage, layers=[3])) == ['embedding', 'layer 3']


def test_a_warm_start_has_position_in_both_places():
    stage = stage_of(joining=dict(type='mmlape.LaPEWarmStart'))
    assert plan_sources(position_plan(stage)) == ('attention', 'stream')
    for source in ('attention', 'stream'):
        assert position_correlations(stage, source=source).source == source
    with pytest.raises(ValueError, match=r"choose source from \['attention', 'stream'\]"):
        position_correlations(stage)


def test_mistakes():
    lape = variants.build_vit(joining=dict(type='mmlape.LaPE', layers=[1, 3]))
    plain, (some,) = stage_of(), position_stages(lape)
    model = variants.build_vit().eval()
    flow = position_flow(model, FLOW_IMAGE, position_stages(model)[0])
    for ask, error, text in (
        (lambda: token_row((3, 0), GRID, 0), ValueError, 'row of the token must be 0 to 2, got 3'),
        (lambda: token_row((0, 5), GRID, 0), ValueError, 'column of the token must be 0 to 4'),
        (lambda: token_row(0, GRID, 0), ValueError, 'there is none'),
        (lambda: token_row(2, GRID, 2), ValueError, 'prefix token must be 0 to 1'),
        (lambda: token_row((1, 2, 3), GRID, 0), TypeError, 'pair'),
        (lambda: token_row('centre', GRID, 0), TypeError, 'pair'),
        (lambda: cosine_matrix(np.zeros((10000, 1))), ValueError, '10000 x 10000'),
        (lambda: layer_positions(some, layers=[0, 2]), ValueError, r'none of the layers \[0, 2\]'),
        (lambda: layer_positions(some, layers=[4]), ValueError, 'layers must be 0 to 3'),
        (lambda: layer_positions(plain, source='blocks'), ValueError, 'source must be one of'),
        (lambda: layer_positions(plain, source='attention'), ValueError, r"\['stream'\] for this"),
        (lambda: pick_channels(9, [9]), ValueError, 'channel must be 0 to 8, got 9'),
        (lambda: pick_channels(9, []), ValueError, 'at least one'),
        (lambda: draw_position_alone(flow, [24]), ValueError, 'channel must be 0 to 23, got 24'),
        (lambda: position_flow(model, FLOW_IMAGE, plain, 4), ValueError, 'layer must be 0 to 3'),
        (lambda: flows(lape, 2), ValueError, r'none of the layers \[2\] receives position'),
        (lambda: scores(head=3), ValueError, 'head must be 0 to 2, got 3'),
        (lambda: scores(token=(9, 0)), ValueError, 'row of the token must be 0 to 3'),
        (lambda: scores(layers=[0]), ValueError, 'none of these layers'),
        (lambda: scores(grid=(80, 90)), ValueError, '7201 x 7201 tokens and 3 heads do not fit'),
    ):
        with pytest.raises(error, match=text):
            ask()


def scores(**options):
    return position_scores(inside_of(dict(GABOR, layers=[1]))[1], **options)


def test_the_chosen_token():
    stage = stage_of(position=SINUSOIDS)
    found = position_correlations(stage, GRID, token=(1, 4), with_prefix=True)
    assert found.num_prefix == 1 and found.matrices.shape[1:] == (16, 16)
    assert np.allclose(found.maps, found.matrices[:, 1 + 1 * 5 + 4, 1:].reshape(-1, 3, 5))
    prefix = position_correlations(stage, GRID, token=0, with_prefix=True)
    assert np.allclose(prefix.maps, prefix.matrices[:, 0, 1:].reshape(-1, 3, 5))
    without = position_correlations(stage, GRID)
    assert without.num_prefix == 0 and without.token == (1, 2)
    assert np.array_equal(without.matrices, found.matrices[:, 1:, 1:])


@pytest.mark.parametrize('name', list(variants.VARIANTS))
def test_every_variant_is_shown(name):
    model = trained(variants.VARIANTS[name]())
    if not any(isinstance(module, JoinedPosition) for module in model.modules()):
        with pytest.raises(ValueError, match='no absolute position'):
            position_stages(model)
        return
    for stage in position_stages(model):
        for source in plan_sources(position_plan(stage)):
            found = position_correlations(stage, GRID, source=source)
            assert found.maps.shape == (len(found.names), *GRID)
            centre = found.maps[:, 1, 2]
            # A gate of a warm start is still closed: its position is zero, and like nothing.
            gates = getattr(stage.position.joining, 'gates', ())
            closed = source == 'attention' and len(gates) > 0
            assert np.allclose(centre[:1] if closed else centre, 1, atol=1e-6)
            assert np.isnan(centre[1:]).all() == closed


GABOR = dict(type='mmlape.GaborAttention')
RELATIVE = dict(type='mmlape.RelativePositionBias')


def inside_of(config, **options):
    model = variants.randomise(variants.build_vit(attention_position=config, **options))
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
    [
        RELATIVE, dict(RELATIVE, layer_norm=True), GABOR, dict(GABOR, query_key='LE', channels=3),
        *(dict(type=f'mmlape.{name}') for name in (
            'QuadraticBias', 'RelativePositionMlp', 'SharedRelativePositionBias', 'SharedRelativePositionMlp',
        )),
    ],
)  # fmt: skip
def test_shows_what_the_network_adds(config, monkeypatch):
    model, stage = inside_of(config)
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
    _, stage = inside_of(RELATIVE, **windows)
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
    _, stage = inside_of(GABOR, **windows)
    assert [found.grid for found in position_scores(stage, (6, 6))] == [(6, 6)]


def test_scores_of_reduced_keys_and_of_windows_that_share_a_position_are_not_shown():
    model = variants.build_pvt(attention_position=RELATIVE)
    reduces = [stage.blocks[0].attn.reduces for stage in model.stages()]
    shown = attention_position_stages(model, with_scores=True)
    assert [s.name for s in shown] == [
        s.name for s, r in zip(model.stages(), reduces, strict=True) if not r
    ]
    assert 0 < len(shown) < len(attention_position_stages(model)) == 4
    shared = dict(type='mmlape.SharedRelativePositionBias')
    _, stage = inside_of(shared, window_size=[2, None, 2, None])
    (found,) = position_scores(stage, (6, 6))
    assert found.names == ('layer 1', 'layer 3')


def test_the_tables_of_a_bias_are_maps_around_the_query():
    _, stage = inside_of(RELATIVE)
    (table,) = attention_tables(stage)
    (found,) = position_scores(stage, token=(1, 2), head=0)
    around = table.maps(2)[0]  # layer 2, head 0, offsets -3..3
    assert table.columns == 'head' and around.shape == (7, 7)
    assert np.allclose(found.maps[2], around[3 - 1 : 7 - 1, 3 - 2 : 7 - 2])


def test_the_tables_of_channels():
    model, stage = inside_of(dict(GABOR, layers=[1, 2], channels=2))
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
    inside = variants.build_adapter(dict(attention_position=GABOR))
    assert [s.name for s in attention_position_stages(inside)] == ['vit.blocks']
    for model in (variants.build_vit(), variants.build_pvt()):
        assert attention_position_stages(model) == []
    depends_on_the_image = variants.build_vit(attention_position=dict(GABOR, parts='2,3'))
    assert attention_position_stages(depends_on_the_image, with_scores=True) == []
    (stage,) = attention_position_stages(depends_on_the_image)
    with pytest.raises(ValueError, match="none of these layers of 'blocks' has a position in the"):
        position_scores(stage)


@pytest.fixture
def sinusoids():
    return position_stages(variants.build_vit(position=SINUSOIDS))[0]


def images(figure):
    """The arrays that a figure shows, by the title of their panel."""
    return [
        (axes.get_title(), np.ma.filled(axes.images[0].get_array(), np.nan))
        for axes in figure.axes
        if axes.images
    ]


def test_tables_and_maps(sinusoids):
    table = embedding_table(sinusoids, GRID)
    assert table.tables.shape == (1, 16, 24) and table.num_prefix == 1
    assert np.array_equal(table.tables[0], sinusoids.position.embedding(GRID)[0].numpy())
    assert table.maps().shape == (24, 3, 5)
    assert table.maps()[7, 2, 1] == table.tables[0, 1 + 2 * 5 + 1, 7]
    without = embedding_table(sinusoids, GRID, with_prefix=False)
    assert without.num_prefix == 0 and np.array_equal(without.maps(), table.maps())
    with pytest.raises(ValueError, match='table must be 0 to 0, got 1'):
        table.maps(1)
    assert pick_channels(100, count=3) == [0, 50, 99] and pick_channels(2) == [0, 1]
    assert pick_channels(9, [4, 2]) == [4, 2]


def test_correlations_are_drawn_with_their_token(sinusoids):
    found = position_correlations(sinusoids, GRID, token=(2, 1))
    figure = draw_correlations(found)
    shown = images(figure)
    assert [title for title, _ in shown if title] == list(found.names)
    panels = [values for _, values in shown]
    for index in range(len(found.names)):
        assert any(np.array_equal(values, found.matrices[index]) for values in panels)
        assert any(np.array_equal(values, found.maps[index]) for values in panels)
    marks = [line.get_xydata()[0].tolist() for axes in figure.axes for line in axes.lines]
    assert marks == [[1, 2]] * len(found.names)


def test_channel_maps_and_grids(sinusoids):
    table = embedding_table(sinusoids, (8, 9))
    titles = dict(images(draw_channels(table, [3, 5])))
    assert np.array_equal(titles['5'], table.maps()[5])

    tables = [embedding_table(sinusoids, grid) for grid in (GRID, (8, 9))]
    maps = [position_correlations(sinusoids, grid).maps[0] for grid in (GRID, (8, 9))]
    shown = images(draw_grids(tables, maps, [2]))
    assert [title for title, _ in shown] == ['3 x 5', '8 x 9', '', '']
    for (_, values), expected in zip(
        shown, [*maps, tables[0].maps()[2], tables[1].maps()[2]], strict=True
    ):
        assert np.array_equal(values, expected)


def test_a_saved_picture_is_a_small_palette_png_and_pyplot_is_left_alone(sinusoids, tmp_path):
    backend = matplotlib.rcParams._get_backend_or_none()
    path = save_figure(draw_embedding(embedding_table(sinusoids)), tmp_path / 'new/picture.png')
    with Image.open(path) as image:
        assert image.mode == 'P' and 700 < image.width <= 810
        image.convert('RGB').load()
    assert [file.name for file in path.parent.iterdir()] == ['picture.png']
    assert matplotlib.rcParams._get_backend_or_none() == backend


FLOW_IMAGE = torch.randn(1, 3, 48, 80, generator=torch.Generator().manual_seed(0))
LEARNED = dict(position=dict(type='mmlape.LearnedPosition'))
BACKBONES = {
    'vit': lambda: variants.build_vit(with_dist_token=True),
    'adapter': variants.build_adapter,
    'pvt': variants.build_pvt,
    'pvt with a linear attention': lambda: variants.build_pvt('V2', linear=True, **LEARNED),
    'swin': lambda: variants.build_swin(**LEARNED),
    'levit': lambda: variants.build_levit(**LEARNED),
}


def flows(backbone, layer=0):
    backbone = variants.randomise(backbone).eval()
    return [
        position_flow(backbone, FLOW_IMAGE, s, layer) for s in position_stages(backbone)
    ], backbone


@pytest.mark.parametrize('name', BACKBONES)
def test_flow_of_every_backbone(name):
    found, backbone = flows(BACKBONES[name]())
    assert found
    for flow, stage in zip(found, position_stages(backbone), strict=True):
        grid = flow.patches.shape[1:]
        assert flow.summed.shape == flow.position.shape == flow.patches.shape
        if name != 'adapter':  # which puts something of its own into the stream before
            assert np.allclose(flow.summed, flow.patches + flow.position, atol=1e-4)
        assert flow.query.shape[1:] == grid and flow.key.shape[1:] == flow.value.shape[1:]
        assert flow.layers.shape == (1 + len(stage.blocks), stage.embed_dims, *grid)
        assert np.array_equal(flow.layers[0], flow.summed)
        for role in ROLES:
            assert getattr(flow, f'position_{role}').shape == getattr(flow, role).shape
        for role in ('summed', *ROLES):
            likeness = flow.likeness(role)
            alone = flow.position if role == 'summed' else getattr(flow, f'position_{role}')
            assert np.array_equal(likeness, channel_likeness(getattr(flow, role), alone))
            assert (likeness >= 0).all() and (likeness < 1 + 1e-6).all()
            varies = np.ptp(flow.position, axis=(1, 2)).max() > 1e-6  # not from a table of one cell
            assert likeness.any() == varies


def test_queries_keys_and_values_are_what_the_layer_computes():
    (flow,), model = flows(variants.build_vit(), layer=1)
    with torch.no_grad():
        stage = model.stages()[0]
        tokens, layout, plan = stage.begin(FLOW_IMAGE)
        tokens, _ = stage.run(tokens, layout, plan, 0, 1)
        block = stage.blocks[1]
        parts = block.attn.qkv(block.norm1(tokens, layout)).chunk(3, dim=-1)
        alone = block.norm1(plan.position.stem, layout) @ block.attn.qkv.weight.T
    for role, part, own in zip(ROLES, parts, alone.chunk(3, dim=-1), strict=True):
        assert np.allclose(getattr(flow, role), layout.to_maps(part)[0], atol=1e-5)
        assert np.allclose(getattr(flow, f'position_{role}'), layout.to_maps(own)[0], atol=1e-4)


@pytest.mark.parametrize('joining', variants.JOININGS)
def test_flow_of_every_joining(joining):
    """With LaPE, position is what the layer adds, and the sum is what its attention reads."""
    (flow,), model = flows(variants.build_vit(joining=variants.JOININGS[joining]))
    stage = model.stages()[0]
    with torch.no_grad():
        tokens, layout, plan = stage.begin(FLOW_IMAGE)
        entry = plan.position.attention[0]
        if entry is None or 'warm' in joining:
            assert np.allclose(flow.summed, flow.patches + flow.position, atol=1e-4)
            return
        read = stage.blocks[0].norm1(tokens, layout) + entry
    assert np.allclose(flow.summed, layout.to_maps(read)[0], atol=1e-5)
    assert np.allclose(flow.position, layout.to_maps(entry)[0], atol=1e-6)


def test_position_in_the_stream_up_to_a_layer():
    """Shared joining adds the same in each."""
    model = variants.randomise(variants.build_vit(joining=dict(type='mmlape.SharedJoining'))).eval()
    first, third = (
        position_flow(model, FLOW_IMAGE, model.stages()[0], layer).position for layer in (0, 2)
    )
    assert np.allclose(third, 3 * first, atol=1e-6) and np.ptp(first) > 0


def test_queries_of_heads_with_wide_values():
    """LeViT has queries, keys and values of a head side by side."""
    (flow, *_), model = flows(BACKBONES['levit']())
    attention, stage = model.stages()[0].blocks[0].attn, model.stages()[0]
    with torch.no_grad():
        tokens, layout, _ = stage.begin(FLOW_IMAGE)
        heads = attention.qkv(tokens, layout)[0].unflatten(-1, (attention.num_heads, -1))
    ends = np.cumsum([0, attention.key_dims, attention.key_dims, attention.value_dims])
    for role, first, last in zip(ROLES, ends, ends[1:], strict=False):
        part = heads[..., first:last].flatten(1).T.reshape(-1, *layout.grid)
        assert np.allclose(getattr(flow, role), part, atol=1e-4)


def test_likeness_is_the_absolute_correlation():
    rng = np.random.default_rng(0)
    maps, other = rng.normal(size=(2, 3, 4, 5))
    maps[0], maps[1] = 3 - 2 * other[0], 7.0
    found = channel_likeness(maps, other)
    expected = abs(np.corrcoef(maps[2].ravel(), other[2].ravel())[0, 1])
    assert found == pytest.approx([1, 0, expected])
    assert pick_extremes(found, 1) == ([0], [1]) and pick_extremes(found, 9)[0][0] == 0
    assert pick_extremes(np.array([0.1, 0.9, 0.5]), 2) == ([1, 2], [0, 2])
    maps[1] += 1e-7 * other[1]  # what float32 leaves of a constant
    assert channel_likeness(maps, other)[1] == 0


def test_pictures_have_a_panel_for_every_map():
    (flow,), _ = flows(variants.build_vit())
    titles = [axes.get_title() for axes in draw_flow(flow, count=2).axes]
    assert len(titles) == 4 * 6
    assert [title.split()[0] for title in titles[:6]] == ['patches', 'position', 'summed', *ROLES]
    alone = draw_position_alone(flow, channels=[3, 5])
    assert len(alone.axes) == 2 * 4 and alone.axes[4].get_ylabel() == 'channel 5'
    assert np.array_equal(alone.axes[5].images[0].get_array(), flow.position_query[5])
