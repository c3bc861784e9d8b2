"""Joining methods: the plans they make, against the papers' formulas."""

import pytest
import torch
import torch.nn.functional as F

from mmlape.position import JoinedPosition, LaPE
from mmlape.position.joining import RowNorm
from mmlape.registry import MODELS


@pytest.mark.parametrize(
    ('config', 'eps'),
    [
        (dict(type='mmlape.VisionTransformer', arch='deit-tiny'), 1e-6),
        (dict(type='mmlape.VisionTransformer', arch='deit-tiny', norm_cfg=dict(type='mmlape.LN', eps=1e-3)), 1e-3),
        (dict(type='mmlape.T2TViT', arch='t2t-vit-7'), 1e-5),
        (dict(type='mmlape.CompactTransformer', arch='vit-lite-7-4'), 1e-5),
        (dict(type='mmlape.SwinTransformer', position=dict(type='mmlape.LearnedPosition')), 1e-5),
        (dict(type='mmlape.PyramidVisionTransformer', arch='tiny'), 1e-6),
    ],
)  # fmt: skip
def test_the_eps_of_its_norms_is_that_of_the_networks(config, eps):
    for own, expected in ((dict(), eps), (dict(eps=0.25), 0.25)):
        with torch.device('meta'):
            model = MODELS.build(dict(config, joining=dict(type='mmlape.LaPE', **own)))
        found = {
            norm.eps for part in model.modules() if isinstance(part, LaPE) for norm in part.norms
        }
        assert found == {expected}


@pytest.mark.parametrize('construction', ['affine', 'gate'])
def test_a_warm_start_hands_on_what_its_layers_made(construction):
    joining = MODELS.build(
        dict(type='mmlape.LaPEWarmStart', embed_dims=6, depth=3, construction=construction)
    )
    for norm in joining.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    shapes = [tuple(gate.weight.shape) for gate in joining.gates]
    assert shapes == [(6,)] * (3 if construction == 'gate' else 0), 'a gain per channel'
    w = torch.randn(1, 5, 6)
    plain = LaPE(embed_dims=6, depth=3, progressive=construction == 'gate')
    plain.norms.load_state_dict(joining.norms.state_dict())
    expected, plan = plain(w), joining(w)
    assert plan.stem is w
    torch.testing.assert_close(plan.carried, expected.carried)
    # Layers that each norm the position itself hand it on as it is.
    assert torch.equal(plan.carried, w) == (construction == 'affine')


def test_rows_in_half_precision_that_autocast_normalises_in_float32(monkeypatch):
    """As on a GPU, where a merged position is in half precision."""
    native = torch.native_layer_norm
    monkeypatch.setattr(torch, 'native_layer_norm', lambda rows, *rest: native(rows.float(), *rest))
    rows, found = torch.randn(1, 5, 8).half(), []
    for norm, dtype in ((RowNorm(8), torch.half), (torch.nn.LayerNorm(8), torch.float)):
        leaf = rows.to(dtype, copy=True).requires_grad_()
        out = norm(leaf)
        assert out.dtype == torch.float
        (out * torch.arange(8)).sum().backward()
        found.append((leaf.grad.float(), norm.weight.grad, norm.bias.grad))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_a_deployed_position_of_maps_of_another_size_is_another_plan():
    """Maps of 7 and of 8 cells are merged to the same grid."""
    parts = dict(type='mmlape.MergedPosition'), dict(type='mmlape.LaPE')
    position = JoinedPosition(6, 1, (4, 4), 0, *parts).eval()
    position.switch_to_deploy()

    def plan(before):
        merge = lambda maps: (F.adaptive_avg_pool2d(maps, 4).flatten(2).mT, None)  # noqa: E731
        return position((4, 4), before, merge).attention[0]

    small, large = torch.randn(1, 6, 7, 7), torch.randn(1, 6, 8, 8)
    first, second = plan(small), plan(large)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(plan(small), first)
