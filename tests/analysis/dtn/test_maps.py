"""Stages of layers, and DTN's maps against the softmax of the paper."""

import backbone_variants as variants
import numpy as np
import pytest
import torch
from torch import nn

from mmlape.analysis import (
    draw_dtn_maps,
    dtn_maps,
    dtn_places,
    dtn_stages,
    find_stages,
    norm_places,
    position_stages,
)
from mmlape.norm import DTN, LN

HEADS = dict(norm_cfg=dict(type='mmlape.DTN'), num_heads=[4, 4, 5, 8])


@pytest.fixture
def pvt():
    return variants.randomise(variants.build_pvt(**HEADS))


def softmax_map(norm, grid, token):
    """Eq. 6 as it stands, over all pairs of cells: row ``token`` of P_h as a map, ``(G, H, W)``."""
    height, width = grid
    cells = torch.tensor([[y, x] for y in range(height) for x in range(width)]).double()
    offset = cells.new_tensor(token) - cells
    dy, dx = offset.unbind(dim=1)
    a_x, a_y, a_2 = norm.positions.weight.double().unbind(dim=1)
    exponent = a_x[:, None] * dx + a_y[:, None] * dy + a_2[:, None] * (dx**2 + dy**2)
    return exponent.softmax(dim=1).unflatten(1, grid).detach().numpy()


@pytest.mark.parametrize(
    ('build', 'names'),
    [
        (variants.build_vit, ['blocks']),
        (variants.build_adapter, ['vit.blocks']),
        (variants.build_pvt, ['block1', 'block2', 'block3', 'block4']),
    ],
)
def test_stages_of_every_backbone(build, names):
    model = build()
    stages = find_stages(model)
    assert [stage.name for stage in stages] == names
    assert all(stage.blocks is model.get_submodule(stage.name) for stage in stages)
    for stage in position_stages(model):
        assert stage.position is model.get_submodule(stage.position_name)
    assert [stage.name for stage in find_stages(model, names[-1])] == names[-1:]


def test_a_stage_may_have_no_position():
    assert {stage.position for stage in find_stages(variants.build_pvt('V2'))} == {None}


@pytest.mark.parametrize(('grid', 'token'), [((5, 7), (1, 6)), ((4, 4), None), ((1, 9), (0, 3))])
def test_maps_are_the_softmax_of_eq_6(pvt, grid, token):
    stage = dtn_stages(pvt, 'block3')[0]
    found = dtn_maps(stage, grid, token)
    assert found.token == (token or (2, 2)) and found.grid == grid
    for layer, place in zip(found.layers, dtn_places(stage), strict=True):
        assert layer.name == place.name and layer.cell == found.token and layer.pool == 1
        expected = softmax_map(place.norm, grid, found.token)
        assert layer.maps.shape == (5, *grid)
        assert np.allclose(layer.maps, expected, atol=1e-6)
        assert np.allclose(layer.maps.sum(axis=(1, 2)), 1, atol=1e-5)


def test_maps_of_pooled_statistics_are_of_cells(pvt):
    stage = dtn_stages(pvt, 'block1')[0]
    found = dtn_maps(stage, (9, 14), (8, 5))
    place = dtn_places(stage)[0]
    assert place.norm.pool == 4
    assert found.layers[0].cell == (2, 1)
    expected = softmax_map(place.norm, (3, 4), (2, 1))
    assert np.allclose(found.layers[0].maps, expected, atol=1e-6)


def test_maps_weigh_what_the_norm_weighs(pvt):
    """With the mean of other tokens alone and the token's own variance, y = (x - P x) / sigma."""
    stage, grid = dtn_stages(pvt, 'block3')[0], (3, 4)
    norm = DTN(20, 5, ratio_mean=0.0, ratio_var=1.0, stabilize=False)
    nn.init.normal_(norm.positions.weight)
    stage.blocks[0].norm1 = norm
    tokens = torch.randn(1, 12, 20)
    (layer,) = dtn_maps(stage, grid, (2, 1), [0], ['norm1']).layers
    with torch.no_grad():
        out = norm(tokens, grid)[0, 9].unflatten(0, (5, 4))
    weights = torch.from_numpy(layer.maps).view(5, 12, 1)
    mean = (weights * tokens[0].unflatten(1, (5, 4)).transpose(0, 1)).sum(dim=1)
    sigma = (tokens[0, 9].var(correction=0) + norm.eps).sqrt()
    assert torch.allclose(out, (tokens[0, 9].view(5, 4) - mean) / sigma, atol=1e-5)


def test_uniform_maps_and_the_default_grid():
    norm_cfg = [dict(type='mmlape.DTN', positions='uniform', pool=1)] * 4
    (stage, *_) = dtn_stages(variants.build_pvt('V2', norm_cfg=norm_cfg))
    found = dtn_maps(stage)
    assert found.grid == (14, 14) and found.token == (7, 7)
    assert np.allclose(found.layers[0].maps, np.full((1, 14, 14), 1 / 196))


def test_arrays_name_layer_and_norm(pvt):
    found = dtn_maps(dtn_stages(pvt, 'block2')[0], (4, 4), layers=[1])
    arrays = found.arrays('_after')
    assert set(arrays) == {
        *('stage', 'grid', 'token', 'maps_layer1_norm1_after', 'maps_layer1_norm2_after'),
        *('cell_layer1_norm1', 'cell_layer1_norm2'),
    }
    assert np.array_equal(arrays['maps_layer1_norm2_after'], found.layers[1].maps)


def test_the_picture_shows_the_maps_and_marks_the_token(pvt):
    stage = dtn_stages(pvt, 'block3')[0]
    states = {'before': dtn_maps(stage, (5, 7), (1, 6)), 'after': dtn_maps(stage, (5, 7), (1, 6))}
    figure = draw_dtn_maps(states)
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 2 * 2 * 5
    norms = states['before'].layers  # those after are the same
    shown = np.concatenate([norm.maps for norm in norms for _ in states])
    for axes, expected in zip(panels, shown, strict=True):
        assert np.array_equal(axes.images[0].get_array(), expected)
        assert axes.patches[0].get_xy() == (5.5, 0.5)
    # the scale's words end inside the picture
    extents = [axes.get_tightbbox(figure.canvas.get_renderer()) for axes in figure.axes]
    assert max(extent.x1 for extent in extents) < figure.bbox.width
    labels = [axes.get_ylabel() for axes in panels[::5]]
    assert labels == [f'layer 0 {n}\n{s}' for n in ('norm1', 'norm2') for s in ('before', 'after')]


def test_mistakes_list_what_is_accepted(pvt):
    with pytest.raises(ValueError, match=r"part must be one of \['block1', .*'block4'\], got 'b'"):
        find_stages(pvt, 'b')
    with pytest.raises(
        ValueError, match=r"part with DTN must be one of .*'block3'\], got 'block4'"
    ):
        dtn_stages(pvt, 'block4')
    with pytest.raises(ValueError, match='no layer of this VisionTransformer has DTN'):
        dtn_stages(variants.build_vit())
    with pytest.raises(ValueError, match='ResNet has no transformer layers of the kind of mmlape'):
        find_stages(type('ResNet', (nn.Module,), {})())
    stage = dtn_stages(pvt, 'block2')[0]
    with pytest.raises(ValueError, match='layers must be 0 to 1, got 2'):
        dtn_maps(stage, layers=[2])
    with pytest.raises(ValueError, match=r"norm must be one of \['norm1', 'norm2'\], got 'norm'"):
        norm_places(stage, norms=['norm'])
    with pytest.raises(ValueError, match='column of the token must be 0 to 3, got 4'):
        dtn_maps(stage, (4, 4), (0, 4))
    stage.blocks[1].norm1 = LN(16)
    with pytest.raises(ValueError, match=r"\[1\] of 'block2' have none, \[0, 1\] have it"):
        dtn_maps(stage, layers=[0, 1], norms=['norm1'])
    assert [layer.name for layer in dtn_maps(stage, norms=['norm1']).layers] == ['layer 0 norm1']
