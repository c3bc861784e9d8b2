"""Joining methods: the plans they make, against the papers' formulas."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_adapter, build_vit

from mmlape.checkpoints import convert_with_report
from mmlape.position import DefaultJoining, JoinedPosition, LaPE
from mmlape.registry import MODELS


def random_lape(**options):
    joining = LaPE(embed_dims=6, depth=3, **options)
    for norm in joining.norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return joining


def layer_norm(joining, layer, x):
    norm = joining.norms[layer]
    return F.layer_norm(x, (6,), norm.weight, norm.bias, 1e-6)


def test_default_adds_once_at_the_stem():
    embedding = torch.randn(1, 5, 6)
    plan = DefaultJoining(embed_dims=6, depth=3)(embedding)
    assert plan.stem is embedding
    assert plan.stream == plan.attention == (None, None, None)


def test_lape_is_progressive():
    """ICCV 2023, eq. 8-11."""
    joining, w = random_lape(), torch.randn(1, 5, 6)
    plan = joining(w)
    w1 = layer_norm(joining, 0, w)
    w2 = layer_norm(joining, 1, w1)
    w3 = layer_norm(joining, 2, w2)
    assert plan.stem is None and plan.stream == (None, None, None)
    for got, expected in zip(plan.attention, (w1, w2, w3), strict=True):
        assert torch.allclose(got, expected, atol=1e-6)


def test_lape_sharing():
    """arXiv v1: every layer normalises the same embedding."""
    joining, w = random_lape(progressive=False), torch.randn(1, 5, 6)
    for layer, got in enumerate(joining(w).attention):
        assert torch.allclose(got, layer_norm(joining, layer, w), atol=1e-6)


@pytest.mark.parametrize('eta', [1, 2, 3])
def test_first_layers_only(eta):
    joining = random_lape(layers=eta)
    plan = joining(torch.randn(1, 5, 6))
    assert [position is not None for position in plan.attention] == [n < eta for n in range(3)]
    assert sum(p.numel() for p in joining.parameters()) == 2 * 6 * eta
    assert [len(joining.layer_modules(n)) for n in range(3)] == [int(n < eta) for n in range(3)]


def gradients(joining, rows):
    rows = rows.clone().requires_grad_()
    plan = joining(rows)
    draw = torch.Generator().manual_seed(1)
    upstream = [torch.randn(row.shape, generator=draw) for row in plan.attention]
    return torch.autograd.grad(plan.attention, [rows, *joining.parameters()], upstream), plan


@pytest.mark.parametrize('options', [{}, dict(progressive=False), dict(norm='norm_scalar_gain')])
def test_gradients_of_constant_rows_are_bounded(options):
    """Such as a prefix row that starts at zero, as in docs/extending.md."""
    joining = LaPE(24, 12, **options)
    rows = 0.02 * torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(0))
    expected, plain = gradients(joining, rows)
    rows[:, 0], rows[:, 1] = 0, 0.3  # nothing varies in either
    found, plan = gradients(joining, rows)
    assert all(tensor.isfinite().all() for tensor in found)
    # Each of 12 layers hands on a gradient of sqrt(24).
    assert 0 < found[0][:, :2].norm() < 12 * 24**0.5 * 2
    # Nothing else changes.
    torch.testing.assert_close(found[0][:, 2:], expected[0][:, 2:], rtol=0, atol=0)
    for entry, before in zip(plan.attention, plain.attention, strict=True):
        torch.testing.assert_close(entry[:, 2:], before[:, 2:], rtol=0, atol=0)
        assert not entry[:, 0].any()


CONSTRUCTIONS = ['affine', 'gate']


@pytest.mark.parametrize('construction', CONSTRUCTIONS)
@pytest.mark.parametrize('build', [build_vit, lambda **vit: build_adapter(vit)])
def test_first_output_equals_the_checkpoints_to_the_bit(construction, build):
    trained = build(joining=dict(type='mmlape.DefaultJoining')).eval()
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model = build(joining=dict(type='mmlape.LaPEWarmStart', construction=construction)).eval()
    state, report = convert_with_report(trained.state_dict(), 'mmlape', model)
    model.load_state_dict(state, strict=True)
    assert all('joining' in name for name in report.fresh)
    for size in ((64, 64), (40, 100)):
        image = torch.randn(2, 3, *size)
        for got, expected in zip(model(image), trained(image), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize('construction', CONSTRUCTIONS)
def test_every_layer_learns_from_the_first_step(construction):
    model = build_vit(joining=dict(type='mmlape.LaPEWarmStart', construction=construction))
    model(torch.randn(2, 3, 64, 64))[0].square().sum().backward()
    for layer in range(4):
        branch = model.position.joining.layer_modules(layer)
        assert any(p.grad.abs().max() > 0 for module in branch for p in module.parameters())


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
    w = torch.randn(1, 5, 6)
    plain = LaPE(embed_dims=6, depth=3, progressive=construction == 'gate')
    plain.norms.load_state_dict(joining.norms.state_dict())
    expected, plan = plain(w), joining(w)
    assert plan.stem is w
    torch.testing.assert_close(plan.carried, expected.carried)
    # Layers that each norm the position itself hand it on as it is.
    assert torch.equal(plan.carried, w) == (construction == 'affine')


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
