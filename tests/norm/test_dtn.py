"""DTN: its options, the paper's reductions, any grid, hard inputs, transforms, what is saved for the backward pass."""

import itertools
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from dtn_norms import OPTIONS, dense_dtn, randomised

from benchmarks.side_by_side import saved_bytes
from mmlape.layout import Layout
from mmlape.norm import DTN, build_token_norm
from mmlape.position.gabor_attention import grid_offsets

GRIDS = [(4, 4), (3, 7), (1, 9), (5, 1), (1, 1)]
MASK = torch.arange(24).view(2, 12) % 5 < 3


@pytest.mark.usefixtures('either_way')
@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_equals_the_paper_on_any_grid(options):
    """Pooled cells at the bottom and right average the tokens that they have."""
    norm = randomised(DTN(8, 4, **options)).double()
    for parameter in norm.positions.parameters():
        parameter.data.mul_(2)
    for grid in GRIDS:
        tokens = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
        torch.testing.assert_close(norm(tokens, grid), dense_dtn(norm, tokens, grid))


def test_prefix_tokens_have_its_eps():
    norm, tokens = DTN(8, 2, eps=0.5), torch.randn(1, 7, 8)
    expected = F.layer_norm(tokens[:, :1], (8,), eps=0.5)
    torch.testing.assert_close(norm(tokens, Layout((2, 3), 1))[:, :1], expected)


def test_ratio_one_is_layer_norm():
    norm = randomised(DTN(8, 2, stabilize=False, ratio_mean=1.0, ratio_var=1))
    tokens = torch.randn(2, 6, 8)
    expected = F.layer_norm(tokens, (8,), norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(norm(tokens, (2, 3)), expected)


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_gradcheck(options):
    """Of PyTorch's operators; those in C++ are compared with them in tests/cpu/test_operators.py."""
    norm = randomised(DTN(6, 2, **options)).double()
    names, parameters = zip(*norm.named_parameters(), strict=True)
    for layout in (Layout((1, 1), 1), Layout((3, 4), 1), Layout((3, 4), 1, MASK)):
        tokens = torch.randn(2, layout.num_tokens, 6, dtype=torch.float64, requires_grad=True)

        def call(tokens, *values, layout=layout):
            return torch.func.functional_call(
                norm, dict(zip(names, values, strict=True)), (tokens, layout)
            )

        assert torch.autograd.gradcheck(call, (tokens, *parameters), fast_mode=True)


HARD = {
    'normal': lambda: torch.randn(2, 16, 8),
    'constant': lambda: torch.full((2, 16, 8), 3.0),
    'zero': lambda: torch.zeros(2, 16, 8),
    'large': lambda: torch.randn(2, 16, 8) * 1e4,
    'offset': lambda: torch.randn(2, 16, 8) + 1e3,
    'one token': lambda: torch.randn(2, 1, 8),
}


@pytest.mark.usefixtures('either_way')
@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_hard_inputs(options):
    norm = randomised(DTN(8, 2, **options))
    exact_norm = deepcopy(norm).double()
    # Half precision: one rounding of the result.
    roundings = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
    for kind, dtype in itertools.product(HARD, roundings):
        tokens = HARD[kind]().to(dtype).requires_grad_()
        out = norm(tokens)
        out.float().square().mean().backward()  # a sum overflows in float16, for most weights
        assert out.dtype == dtype, (kind, dtype)
        assert out.isfinite().all() and tokens.grad.isfinite().all(), (kind, dtype)
        exact = exact_norm(tokens.detach().double())
        error = (out.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        # A head that is all offset has a variance near eps, of which the roundings of numbers near 1 are a percent.
        accepted = max(roundings[dtype], {'offset': 5e-3, 'constant': 1e-4}.get(kind, 0))
        assert error < accepted, (kind, dtype, error)


@pytest.mark.usefixtures('either_way')
def test_variance_is_never_negative():
    """Far from a step, its terms ``P x^2`` and ``(P x)^2`` are equal but for rounding."""
    norm = DTN(8, 1, stabilize=False, ratio_var=0)
    norm.positions.weight.data = torch.tensor([[0.0, 0, -8]])
    tokens = 1e4 * torch.tensor([1.0, 1, 1, 5]).repeat(4)[None, :, None].expand(2, -1, 8)
    assert norm(tokens, (4, 4)).isfinite().all()


def test_weights_next_to_nothing_are_zero(monkeypatch):
    """Products with them would be subnormal numbers, which processors compute slowly."""
    seen, bmm = [], torch.bmm
    monkeypatch.setattr(torch, 'bmm', lambda maps, x: seen.append(maps) or bmm(maps, x))
    DTN(8, 4)(torch.randn(1, 14 * 40, 8), (14, 40))
    for maps in seen:
        assert maps[maps != 0].min() > 1e-19
        torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:2]))
    assert len(seen) == 2 and (seen[1] == 0).float().mean() > 0.5


def test_offsets_are_made_once_per_grid_and_dtype():
    """And serve training where inference mode made them; none are in the state."""
    grid_offsets.cache.clear()
    norm = DTN(8, 2)
    with torch.inference_mode():
        norm(torch.randn(1, 12, 8), (3, 4))
    for _ in range(2):
        norm(torch.randn(1, 12, 8, requires_grad=True), (3, 4)).sum().backward()
    assert len(grid_offsets.cache) == 1
    norm.double()(torch.randn(1, 12, 8).double(), (3, 4))
    assert len(grid_offsets.cache) == 2
    assert set(norm.state_dict()) == {
        'weight', 'bias', 'ratio_mean.omega', 'ratio_var.omega', 'positions.weight',
    }  # fmt: skip


@pytest.mark.usefixtures('either_way')
def test_frozen_parameters_get_no_gradient():
    norm = build_token_norm(dict(type='mmlape.DTN', num_heads=2, requires_grad=False), 8)
    tokens = torch.randn(1, 4, 8, requires_grad=True)
    norm(tokens).sum().backward()
    assert tokens.grad is not None and all(p.grad is None for p in norm.parameters())


def test_nothing_of_a_transform_is_kept():
    """A tensor that is made inside of one ends with it."""
    grid_offsets.cache.clear()
    norm = DTN(8, 2)
    torch.func.grad(lambda tokens: norm(tokens, (2, 3)).sum())(torch.randn(1, 6, 8))
    assert len(grid_offsets.cache) == 0


@pytest.mark.parametrize('options', [dict(), dict(pool=2)], ids=str)
def test_training_saves_the_input_alone(options):
    """It is computed again in the backward pass."""
    norm, x = DTN(16, 2, **options), torch.randn(2, 144, 16, requires_grad=True)
    assert saved_bytes(lambda: norm(x, (12, 12))) < 2 * x.numel() * 4


def test_second_derivatives():
    norm = randomised(DTN(4, 2, stabilize=False)).double()
    tokens = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: norm(x, (2, 3)), tokens, fast_mode=True)
