"""Padding takes no part in the statistics of token norms."""

from copy import deepcopy

import pytest
import torch
from dtn_norms import WITH_LEARNED_MAPS, dense_dtn, random_mask, randomised

from mmlape.layout import Layout
from mmlape.norm import DTN, TokenNorm, build_token_norm

BY_PRESENT_TOKENS = [
    dict(type='mmlape.TokenIN'),
    dict(type='mmlape.TokenGN', num_groups=2),
    dict(type='mmlape.TokenBN'),
    dict(type='mmlape.PowerNorm', warmup_iters=1),
    dict(type='mmlape.SwitchableNorm'),
    dict(type='mmlape.SwitchableNorm', use_bn=True),
]


def random_tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 2 + 1


@pytest.mark.parametrize('grid', [(4, 6), (5, 7), (1, 9)])
@pytest.mark.parametrize('options', WITH_LEARNED_MAPS, ids=str)
def test_dtn_is_the_dense_map_of_present_tokens(options, grid):
    count = grid[0] * grid[1]
    norm = randomised(DTN(8, 4, **options)).double()
    mask = random_mask(2, count, count // 2)
    mask[0] = torch.arange(count) < count // 3  # cells without any
    tokens = random_tokens(2, count, 8)
    out = norm(tokens, Layout(grid, mask=mask))
    expected = dense_dtn(norm, tokens, grid, mask)
    torch.testing.assert_close(out[mask], expected[mask])
    # in single precision as well
    single = deepcopy(norm).float()(tokens.float(), Layout(grid, mask=mask))
    torch.testing.assert_close(single[mask].double(), expected[mask], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_dtn_where_its_map_sees_padding_alone(dtype):
    """A head that sees only the far left, which is padding: all present tokens have equal weights."""
    norm = DTN(4, 1, stabilize=False, ratio_mean=0, ratio_var=0).to(dtype)
    norm.positions.weight.data = torch.tensor([[2000.0, 0, 0]], dtype=dtype)
    mask = torch.arange(8)[None] >= 4
    tokens = random_tokens(1, 8, 4).to(dtype).requires_grad_()
    out = norm(tokens, Layout((1, 8), mask=mask))
    assert out.isfinite().all()
    out, present = out[:, 4:], tokens[:, 4:]
    var = present.var(dim=1, correction=0, keepdim=True)
    expected = (present - present.mean(dim=1, keepdim=True)) / (var + norm.eps).sqrt()
    torch.testing.assert_close(out, expected)
    (grad,) = torch.autograd.grad(out.sin().sum(), tokens)
    (wanted,) = torch.autograd.grad(expected.sin().sum(), tokens)
    torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize('config', BY_PRESENT_TOKENS, ids=str)
@pytest.mark.parametrize('prefix', [0, 2])
def test_others_are_those_of_present_tokens_alone(config, prefix):
    """Outputs, gradients and running statistics, over a few steps of training and in evaluation."""
    norm = randomised(build_token_norm(config, 8)).double()
    alone = deepcopy(norm)
    for training in (True, True, True, False):
        norm.train(training)
        alone.train(training)
        layout = Layout((3, 4), prefix, random_mask(2, 12, 7))
        tokens = random_tokens(2, 12 + prefix, 8).requires_grad_()
        present = layout.token_mask()
        out = norm(tokens, layout)[present].unflatten(0, (2, -1))
        expected = alone(tokens[present].unflatten(0, (2, -1)))
        torch.testing.assert_close(out, expected)
        grads = [
            torch.autograd.grad(result.sin().sum(), [tokens, *model.parameters()])
            for result, model in ((out, norm), (expected, alone))
        ]
        torch.testing.assert_close(*grads)
        torch.testing.assert_close(norm.state_dict(), alone.state_dict())


EVERY = [*BY_PRESENT_TOKENS, dict(type='mmlape.DTN', num_heads=2)]


@pytest.mark.parametrize('config', EVERY, ids=str)
@pytest.mark.parametrize('count', [0, 1])
def test_images_of_padding_alone(config, count):
    """And with a single token that is there."""
    norm = build_token_norm(config, 8)
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[:, :count] = True
    tokens = torch.randn(2, 12, 8, requires_grad=True)
    out = norm(tokens, Layout((3, 4), mask=mask))
    out.square().sum().backward()
    assert out.isfinite().all() and tokens.grad.isfinite().all()
    assert all(value.isfinite().all() for value in norm.state_dict().values())


def test_a_norm_that_cannot_is_named():
    class MeanNorm(TokenNorm):
        mixes_tokens = True

        def standardise(self, x):
            return x - x.mean(dim=1, keepdim=True)

    tokens = torch.randn(2, 12, 8)
    assert MeanNorm(8)(tokens, Layout((3, 4))).shape == tokens.shape
    with pytest.raises(ValueError, match=r'MeanNorm.*no mask'):
        MeanNorm(8)(tokens, Layout((3, 4), mask=random_mask(2, 12, 5)))
