"""Joining methods: the plans they make, against the papers' formulas."""

import pytest
import torch
import torch.nn.functional as F

from mmlape.position import DefaultJoining, LaPE
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


def test_gradcheck():
    joining = random_lape().double()
    w = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: joining(w).attention, (w,))


@pytest.mark.parametrize('scale', [0.0, 1e4])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_extreme_embeddings_stay_finite(scale, dtype):
    plan = random_lape().to(dtype)((torch.randn(1, 4, 6) * scale).to(dtype))
    assert all(position.isfinite().all() for position in plan.attention)


@pytest.mark.parametrize('layers', [0, 4, -1])
def test_layers_out_of_range(layers):
    with pytest.raises(ValueError, match='layers must be 1 to 3'):
        LaPE(embed_dims=6, depth=3, layers=layers)


@pytest.mark.parametrize('options', [dict(progressive='yes'), dict(layers=1.0)])
def test_wrong_types(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        LaPE(embed_dims=6, depth=3, **options)


def test_misspelt_option_is_refused():
    with pytest.raises(TypeError, match='progresive'):
        MODELS.build(dict(type='mmlape.LaPE', embed_dims=6, depth=3, progresive=True))


def test_misspelt_type_is_refused():
    with pytest.raises(KeyError, match='Lape'):
        MODELS.build(dict(type='mmlape.Lape', embed_dims=6, depth=3))


def test_compiles_as_one_graph():
    joining, w = random_lape(), torch.randn(1, 5, 6)
    compiled = torch.compile(joining, fullgraph=True, backend='aot_eager')(w)
    for got, expected in zip(compiled.attention, joining(w).attention, strict=True):
        assert torch.allclose(got, expected, atol=1e-6)


class TestConstantRows:
    """A prefix row that starts at zero, as in docs/extending.md."""

    @staticmethod
    def gradients(joining, rows):
        rows = rows.clone().requires_grad_()
        plan = joining(rows)
        draw = torch.Generator().manual_seed(1)
        given = [torch.randn(row.shape, generator=draw) for row in plan.attention]
        return torch.autograd.grad(plan.attention, [rows, *joining.parameters()], given), plan

    @pytest.mark.parametrize(
        'options', [{}, dict(progressive=False), dict(norm='norm_scalar_gain')]
    )
    def test_gradient_is_bounded(self, options):
        joining = LaPE(24, 12, **options)
        rows = 0.02 * torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(0))
        expected, plain = self.gradients(joining, rows)
        rows[:, 0], rows[:, 1] = 0, 0.3  # nothing varies in either
        found, plan = self.gradients(joining, rows)
        assert all(tensor.isfinite().all() for tensor in found)
        # Each of 12 layers hands on a gradient of sqrt(24).
        assert 0 < found[0][:, :2].norm() < 12 * 24**0.5 * 2
        # Nothing else changes.
        torch.testing.assert_close(found[0][:, 2:], expected[0][:, 2:], rtol=0, atol=0)
        for entry, before in zip(plan.attention, plain.attention, strict=True):
            torch.testing.assert_close(entry[:, 2:], before[:, 2:], rtol=0, atol=0)
            assert not entry[:, 0].any()

    def test_a_row_grows_out_of_zero(self):
        """And the gradient stays what AdamW and a clipped norm can use."""
        joining = LaPE(24, 12)
        rows = torch.nn.Parameter(torch.zeros(1, 2, 24))
        optimizer = torch.optim.AdamW([rows, *joining.parameters()], lr=1e-3)
        target = torch.randn(1, 2, 24, generator=torch.Generator().manual_seed(0))
        losses, norms = [], []
        for _ in range(60):
            loss = sum((row - target).square().mean() for row in joining(rows).attention)
            optimizer.zero_grad()
            loss.backward()
            norms.append(rows.grad.norm().item())
            optimizer.step()
            losses.append(loss.item())
        assert max(norms) < 2e3
        assert losses[-1] < 0.6 * losses[0]
