"""Joining methods: the plans they make, against the papers' formulas."""

import pytest
import torch
from backbone_variants import LAPE, LEARNED, build_swin, randomise

from mmlape.position import LaPE
from mmlape.position.joining import RowNorm
from mmlape.registry import MODELS


@pytest.mark.parametrize(
    ('config', 'eps'),
    [
        (dict(type='mmlape.VisionTransformer', arch='deit-tiny'), 1e-6),
        (dict(type='mmlape.VisionTransformer', arch='deit-tiny', joining=dict(eps=0.25)), 0.25),
        (dict(type='mmlape.VisionTransformer', arch='deit-tiny', norm_cfg=dict(type='mmlape.LN', eps=1e-3)), 1e-3),
        (dict(type='mmlape.T2TViT', arch='t2t-vit-7'), 1e-5),
        (dict(type='mmlape.CompactTransformer', arch='vit-lite-7-4'), 1e-5),
        (dict(type='mmlape.SwinTransformer', position=dict(type='mmlape.LearnedPosition')), 1e-5),
        (dict(type='mmlape.PyramidVisionTransformer', arch='tiny'), 1e-6),
    ],
)  # fmt: skip
def test_the_eps_of_its_norms_is_that_of_the_networks(config, eps):
    joining = dict(type='mmlape.LaPE', **config.get('joining', {}))
    with torch.device('meta'):
        model = MODELS.build({**config, 'joining': joining})
    found = {norm.eps for part in model.modules() if isinstance(part, LaPE) for norm in part.norms}
    assert found == {eps}


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


def test_a_deployed_pyramid_knows_images_of_another_size():
    """The grids of all stages but the first are the same."""
    model = randomise(build_swin(position=LEARNED, joining=LAPE))
    images = [torch.randn(1, 3, side, 64) for side in (64, 60)]
    with torch.no_grad():
        expected = [out for image in images for out in model(image)]
    model.switch_to_deploy()
    found = [out for image in images for out in model(image)]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize('construction', ['affine', 'gate'])
def test_a_warm_start_of_a_pyramid_changes_nothing(construction):
    """Its tokens carry the first stage's position, which is not added again."""
    plain = build_swin(position=dict(LEARNED, std=1.0)).eval()
    joining = dict(type='mmlape.LaPEWarmStart', construction=construction)
    warm = build_swin(position=LEARNED, joining=joining).eval()
    left_out = warm.load_state_dict(plain.state_dict(), strict=False)
    assert not left_out.unexpected_keys
    image = torch.randn(1, 3, 60, 64)
    for one, other in zip(warm(image), plain(image), strict=True):
        assert torch.equal(one, other)
