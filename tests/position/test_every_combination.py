"""Any embedding x any joining x any backbone builds, trains one step, and goes to another grid."""

import pytest
import torch
from backbone_variants import build_adapter, build_vit

from mmlape import position
from mmlape.position.joining import POSITION_NORMS

POSITIONS = {
    **position.POSITIONS,
    'sinusoidal_2d_resized': dict(type='mmlape.SinusoidalPosition', axes=2, other_grids='resize'),
    'gabor_without_edges': dict(type='mmlape.GaborPosition', variant='G'),
    'edges': dict(type='mmlape.GaborPosition', variant='E'),
}
JOININGS = {**position.JOININGS, 'lape_layers_0_2': dict(type='mmlape.LaPE', layers=[0, 2])}
# All in a ViT. An adapter has such a ViT: every position and every joining once.
COMBINATIONS = [
    *(('vit', place, joining) for place in POSITIONS for joining in JOININGS),
    *(('adapter', place, 'lape') for place in POSITIONS),
    *(('adapter', 'learned', joining) for joining in JOININGS if joining != 'lape'),
]
BACKBONES = {
    'vit': build_vit,
    'adapter': lambda **vit: build_adapter(vit),
}


def train_one_step(model):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sum(out.square().mean() for out in model(torch.randn(2, 3, 64, 64))).backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize(('backbone', 'place', 'joining'), COMBINATIONS)
def test_builds_trains_and_resizes(backbone, place, joining):
    model = BACKBONES[backbone](position=POSITIONS[place], joining=JOININGS[joining])
    changed = train_one_step(model)
    own = [n for n, p in model.named_parameters() if 'position.' in n and p.numel()]
    assert set(own) <= changed
    with torch.no_grad():
        outputs = model.eval()(torch.randn(1, 3, 96, 40))
    assert all(out.isfinite().all() for out in outputs)


@pytest.mark.parametrize('norm', POSITION_NORMS)
def test_every_row_of_table_8(norm):
    """ICCV 2023: what replaces the LayerNorm of the position, with its parameters."""
    model = build_vit(joining=dict(type='mmlape.LaPE', norm=norm))
    train_one_step(model)
    per_layer = {
        'identity': 0,
        'scalar_gain': 1,
        'channel_gain': 24,
        'channel_gain_bias': 48,
        'norm': 0,
        'norm_scalar_gain': 1,
        'norm_channel_gain': 24,
        'norm_channel_gain_bias': 48,
    }
    assert sum(p.numel() for p in model.position.joining.parameters()) == 4 * per_layer[norm]
