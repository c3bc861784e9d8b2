"""Channels of queries, keys, values and layer outputs, and how like position they are."""

import numpy as np
import pytest
import torch
from backbone_variants import (
    JOININGS,
    build_adapter,
    build_levit,
    build_pvt,
    build_swin,
    build_vit,
    randomise,
)

from mmlape.analysis import (
    channel_likeness,
    draw_flow,
    draw_layers,
    draw_position_alone,
    position_flow,
    position_stages,
)
from mmlape.analysis.position.flow import ROLES, pick_extremes

IMAGE = torch.randn(1, 3, 48, 80, generator=torch.Generator().manual_seed(0))
LEARNED = dict(position=dict(type='mmlape.LearnedPosition'))
BACKBONES = {
    'vit': lambda: build_vit(with_dist_token=True),
    'adapter': build_adapter,
    'pvt': build_pvt,
    'pvt with a linear attention': lambda: build_pvt('V2', linear=True, **LEARNED),
    'swin': lambda: build_swin(**LEARNED),
    'levit': lambda: build_levit(**LEARNED),
}


def flows(backbone, layer=0):
    backbone = randomise(backbone).eval()
    return [position_flow(backbone, IMAGE, s, layer) for s in position_stages(backbone)], backbone


@pytest.mark.parametrize('name', BACKBONES)
def test_every_backbone(name):
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
            assert likeness.shape == getattr(flow, role).shape[:1]
            assert (likeness >= 0).all() and (likeness < 1 + 1e-6).all()
            varies = np.ptp(flow.position, axis=(1, 2)).max() > 1e-6  # not from a table of one cell
            assert likeness.any() == varies


def test_queries_keys_and_values_are_what_the_layer_computes():
    (flow,), model = flows(build_vit(), layer=1)
    with torch.no_grad():
        stage = model.stages()[0]
        tokens, layout, plan = stage.begin(IMAGE)
        tokens, _ = stage.run(tokens, layout, plan, 0, 1)
        block = stage.blocks[1]
        parts = block.attn.qkv(block.norm1(tokens, layout)).chunk(3, dim=-1)
        alone = block.norm1(plan.position.stem, layout)[0] @ block.attn.qkv.weight.T
    for role, part, own in zip(ROLES, parts, alone.chunk(3, dim=-1), strict=True):
        expected = part[0, 1:].T.reshape(-1, *layout.grid)
        assert np.allclose(getattr(flow, role), expected, atol=1e-5)
        expected = own[1:].T.reshape(-1, *layout.grid)
        assert np.allclose(getattr(flow, f'position_{role}'), expected, atol=1e-4)


@pytest.mark.parametrize('joining', JOININGS)
def test_every_joining(joining):
    """With LaPE, position is what the layer adds, and the sum is what its attention reads."""
    (flow,), model = flows(build_vit(joining=JOININGS[joining]))
    stage = model.stages()[0]
    with torch.no_grad():
        tokens, layout, plan = stage.begin(IMAGE)
    entry = plan.position.attention[0]
    if entry is not None and 'warm' not in joining:
        with torch.no_grad():
            read = (stage.blocks[0].norm1(tokens, layout) + entry)[0, 1:].T.reshape(
                -1, *layout.grid
            )
        assert np.allclose(flow.summed, read, atol=1e-5)
        assert np.allclose(
            flow.position, entry[0, 1:].T.reshape(-1, *layout.grid).detach(), atol=1e-6
        )
    else:
        assert np.allclose(flow.summed, flow.patches + flow.position, atol=1e-4)


def test_likeness_is_the_absolute_correlation():
    rng = np.random.default_rng(0)
    maps, other = rng.normal(size=(2, 3, 4, 5))
    maps[0], maps[1] = 3 - 2 * other[0], 7.0
    found = channel_likeness(maps, other)
    expected = abs(np.corrcoef(maps[2].ravel(), other[2].ravel())[0, 1])
    assert found == pytest.approx([1, 0, expected])
    assert pick_extremes(found, 1) == ([0], [1]) and pick_extremes(found, 9)[0][0] == 0


def test_channels_that_only_position_fills_are_found():
    """Where half of the patch embedding is zero, position has those channels for itself."""
    model = randomise(build_vit()).eval()
    with torch.no_grad():
        model.patch_embed.proj.weight[:12] = 0
        model.patch_embed.proj.bias[:12] = 0
    flow = position_flow(model, IMAGE, position_stages(model)[0])
    likeness = flow.likeness('summed')
    assert np.allclose(likeness[:12], 1, atol=1e-5) and (likeness[12:] < 0.999).all()
    assert set(pick_extremes(likeness, 12)[0]) == set(range(12))


def test_pictures_have_a_panel_for_every_map():
    (flow,), _ = flows(build_vit())
    titles = [axes.get_title() for axes in draw_flow(flow, count=2).axes]
    assert len(titles) == 4 * 6
    assert [title.split()[0] for title in titles[:6]] == ['patches', 'position', 'summed', *ROLES]
    alone = draw_position_alone(flow, channels=[3, 5])
    assert len(alone.axes) == 2 * 4 and alone.axes[4].get_ylabel() == 'channel 5'
    assert np.array_equal(alone.axes[5].images[0].get_array(), flow.position_query[5])
    figure = draw_layers(flow, note='initial values')
    assert len(figure.axes) == 2 * 5 and figure.texts[0].get_text() == 'initial values'
    most = int(flow.likeness('summed').argmax())
    assert np.array_equal(figure.axes[4].images[0].get_array(), flow.layers[4, most])


def test_mistakes():
    model = build_vit().eval()
    (stage,) = position_stages(model)
    with pytest.raises(ValueError, match='layer must be 0 to 3, got 4'):
        position_flow(model, IMAGE, stage, 4)
    flow = position_flow(model, IMAGE, stage)
    with pytest.raises(ValueError, match='channel must be 0 to 23, got 24'):
        draw_position_alone(flow, channels=[24])
    model = build_vit(joining=dict(type='mmlape.LaPE', layers=2)).eval()
    with pytest.raises(ValueError, match=r'none of the layers \[3\] receives position'):
        position_flow(model, IMAGE, position_stages(model)[0], 3)
