"""Any embedding x any joining, and any position inside the attention x any pyramid, builds, trains, takes any size."""

import pytest
import torch
from backbone_variants import build_vit
from registered import component, pvt

from mmlape import position
from mmlape.position.joining import POSITION_NORMS

POSITIONS = {
    **position.POSITIONS,
    'sinusoidal_2d_resized': dict(type='mmlape.SinusoidalPosition', axes=2, other_grids='resize'),
    'gabor_without_edges': dict(type='mmlape.GaborPosition', variant='G'),
    'edges': dict(type='mmlape.GaborPosition', variant='E'),
}
JOININGS = {**position.JOININGS, 'lape_layers_0_2': dict(type='mmlape.LaPE', layers=[0, 2])}


def train_one_step(model, *sizes):
    """Names of the parameters that have changed; all have gradients."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for size in sizes:
        sum(out.square().mean() for out in model(torch.randn(2, 3, *size))).backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


# A joining needs nothing of an embedding but the number of its tables.
PAIRS = [
    *((position, joining) for position in POSITIONS for joining in ('lape', 'unshared')),
    *(('learned', joining) for joining in JOININGS if joining not in ('lape', 'unshared')),
]


@pytest.mark.parametrize(('position', 'joining'), PAIRS)
def test_builds_trains_and_resizes(position, joining):
    model = build_vit(position=POSITIONS[position], joining=JOININGS[joining])
    changed = train_one_step(model, (48, 32))
    own = [n for n, p in model.named_parameters() if 'position.' in n and p.numel()]
    assert set(own) <= changed
    with torch.no_grad():
        outputs = model.eval()(torch.randn(1, 3, 40, 70))
    assert all(out.isfinite().all() for out in outputs)


@pytest.mark.parametrize('norm', POSITION_NORMS)
def test_every_row_of_table_8(norm):
    """ICCV 2023: what replaces the LayerNorm of the position, with its parameters."""
    model = build_vit(joining=dict(type='mmlape.LaPE', norm=norm))
    train_one_step(model, (48, 32))
    per_layer = 48 if norm.endswith('bias') else 24 if 'channel' in norm else int('scalar' in norm)
    assert sum(p.numel() for p in model.position.joining.parameters()) == 4 * per_layer


ATTENTION_POSITIONS = {
    'relative': component('RelativePositionBias'),
    'relative-normed': component('RelativePositionBias', layer_norm=True),
    'quadratic': component('QuadraticBias'),
    'gabor': component('GaborAttention'),
    'gabor-2,3,4': component('GaborAttention', parts='2,3,4', query_key='LE'),
    'rotary': component('RotaryPosition'),
    'rotary-rescaled': component('RotaryPosition', rescale=True),
}
PYRAMIDS = {
    'pvt': pvt(),
    'pvt-cls-token': pvt(with_cls_token=True, joining=component('LaPE')),
    'pvtv2-linear': pvt('V2', linear=True),
}


# Keys lie on a grid of a fraction of the queries', on one of 7 x 7 cells, or beside a class token.
COARSER = [
    *((name, position) for name in ('pvt', 'pvtv2-linear') for position in ATTENTION_POSITIONS),
    *(('pvt-cls-token', position) for position in ('relative', 'gabor-2,3,4', 'rotary')),
]


@pytest.mark.parametrize(('name', 'position'), COARSER)
def test_pyramids_with_coarser_keys(name, position):
    model = PYRAMIDS[name](attention_position=ATTENTION_POSITIONS[position])
    changed = train_one_step(model, (70, 33))
    own = {n for n, p in model.named_parameters() if 'attn.position.' in n and p.numel()}
    # Stage 4 has one cell: its bias adds a constant to all scores, whose gradient is rounding errors.
    own -= {'block4.0.attn.position.pe_norm.bias'}
    assert bool(own) == ('rotary' not in position) and own <= changed
    model.eval()
    with torch.no_grad():
        for size in ((32, 64), (1, 1), (5, 130)):
            outputs = model(torch.randn(1, 3, *size))
            sides = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)]
            assert [tuple(out.shape[2:]) for out in outputs] == sides
            assert all(out.isfinite().all() for out in outputs)
