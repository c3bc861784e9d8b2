"""Position correlations: the mathematics of eq. 6, 7 and 12, for every backbone and way of joining."""

import backbone_variants as variants
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmlape.analysis import (
    cosine_matrix,
    layer_positions,
    pick_stage,
    plan_sources,
    position_correlations,
    position_plan,
    position_stages,
    token_row,
)
from mmlape.position import JoinedPosition
from mmlape.registry import MODELS

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
    return pick_stage(trained(variants.build_vit(**options)))


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


def test_too_many_tokens_are_refused_before_memory_is_taken():
    with pytest.raises(ValueError, match='10000 x 10000'):
        cosine_matrix(np.zeros((10000, 1)))


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


def test_the_plan_is_the_one_that_a_forward_pass_makes():
    model = trained(variants.build_vit(joining=dict(type='mmlape.LaPE')))
    with torch.no_grad():
        plan = model.stages()[0].begin(torch.zeros(1, 3, 48, 80))[2].position
    ours = position_plan(pick_stage(model), GRID)
    assert all(torch.equal(a, b) for a, b in zip(plan.attention, ours.attention, strict=True))


def test_shared_joining_shows_what_default_shows():
    """The sum of equal entries points where one entry points."""
    torch.manual_seed(1)
    default = stage_of(position=SINUSOIDS)
    torch.manual_seed(1)
    shared = stage_of(position=SINUSOIDS, joining=dict(type='mmlape.SharedJoining'))
    first, second = (position_correlations(stage, GRID) for stage in (default, shared))
    assert np.allclose(first.matrices, second.matrices, atol=1e-4)


def test_unshared_joining_shows_the_sum_of_all_entries_so_far():
    stage = stage_of(joining=dict(type='mmlape.UnsharedJoining'))
    found = position_correlations(stage, GRID, with_prefix=True)
    assert found.names == ('layer 0', 'layer 1', 'layer 2', 'layer 3')  # no embedding for all
    with torch.no_grad():
        summed = stage.position.embedding(GRID).cumsum(dim=0)
        for layer, block in enumerate(stage.blocks):
            assert np.allclose(found.matrices[layer], cosine(block.norm1(summed[layer])), atol=1e-5)


def test_a_token_without_position_has_no_correlation_whatever_the_norms_bias():
    stage = stage_of(position=dict(type='mmlape.SinusoidalPosition', axes=2))
    matrices = position_correlations(stage, GRID, with_prefix=True).matrices
    assert np.isnan(matrices[:, 0]).all() and np.isnan(matrices[:, :, 0]).all()
    assert np.isfinite(matrices[:, 1:, 1:]).all()


def test_layers_without_position_are_left_out():
    stage = stage_of(joining=dict(type='mmlape.LaPE', layers=[1, 3]))
    names = [position.name for position in layer_positions(stage)]
    assert names == ['embedding', 'layer 1', 'layer 3']
    assert [p.name for p in layer_positions(stage, layers=[3])] == ['embedding', 'layer 3']
    with pytest.raises(ValueError, match=r'none of the layers \[0, 2\]'):
        layer_positions(stage, layers=[0, 2])
    with pytest.raises(ValueError, match='layers must be 0 to 3'):
        layer_positions(stage, layers=[4])


def test_a_warm_start_has_position_in_both_places():
    stage = stage_of(joining=dict(type='mmlape.LaPEWarmStart'))
    assert plan_sources(position_plan(stage)) == ('attention', 'stream')
    with pytest.raises(ValueError, match=r"choose source from \['attention', 'stream'\]"):
        position_correlations(stage)
    for source in ('attention', 'stream'):
        assert position_correlations(stage, source=source).source == source
    with pytest.raises(ValueError, match='source must be one of'):
        position_correlations(stage, source='blocks')
    with pytest.raises(ValueError, match=r"one of \['stream'\] for this joining"):
        position_correlations(stage_of(), source='attention')


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


@pytest.mark.parametrize(
    ('token', 'num_prefix', 'error', 'text'),
    [
        ((3, 0), 0, ValueError, 'row of the token must be 0 to 2, got 3'),
        ((0, 5), 0, ValueError, 'column of the token must be 0 to 4'),
        (0, 0, ValueError, 'there is none'),
        (2, 2, ValueError, 'prefix token must be 0 to 1'),
        ((1, 2, 3), 0, TypeError, 'pair'),
        ('centre', 0, TypeError, 'pair'),
    ],
)
def test_wrong_tokens(token, num_prefix, error, text):
    with pytest.raises(error, match=text):
        token_row(token, GRID, num_prefix)


PYRAMID = dict(
    type='mmlape.PyramidVisionTransformer',
    arch=dict(
        embed_dims=[8, 16, 24, 32],
        depths=[1, 2, 1, 1],
        num_heads=[1, 1, 1, 1],
        mlp_ratios=[1, 1, 1, 1],
        sr_ratios=[8, 4, 2, 1],
    ),
    img_size=64,
)
PYRAMID_GRIDS = {
    'position1': (16, 16),
    'position2': (8, 8),
    'position3': (4, 4),
    'position4': (2, 2),
}


@pytest.mark.parametrize('joining', ['default', 'lape'])
def test_every_stage_of_a_pyramid(joining):
    config = dict(PYRAMID, joining=variants.JOININGS[joining], with_cls_token=True)
    stages = {stage.position_name: stage for stage in position_stages(MODELS.build(config))}
    assert {name: stage.position.embedding.grid for name, stage in stages.items()} == PYRAMID_GRIDS
    for name, stage in stages.items():
        found = position_correlations(stage, GRID, with_prefix=True)
        tokens = 15 + (name == 'position4')
        assert found.matrices.shape == (1 + len(stage.blocks), tokens, tokens)


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
            closed = (
                source == 'attention' and getattr(stage.position.joining, 'gates', None) is not None
            )
            assert np.allclose(centre[:1] if closed else centre, 1, atol=1e-6)
            assert np.isnan(centre[1:]).all() == closed


def test_any_token_norm():
    stage = stage_of(norm_cfg=dict(type='mmlape.DTN', num_heads=3))
    assert np.isfinite(position_correlations(stage, GRID).matrices).all()


def test_which_stage():
    model = MODELS.build(PYRAMID)
    assert pick_stage(model, 'position2').position.embedding.embed_dims == 16
    for name in (None, 'position5'):
        with pytest.raises(ValueError, match=r"one of \['position1', .*got"):
            pick_stage(model, name)
    with pytest.raises(ValueError, match='Linear has no transformer layers of the kind of mmlape'):
        position_stages(torch.nn.Linear(2, 2))
