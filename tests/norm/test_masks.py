"""Padding takes no part in the statistics of token norms."""

from copy import deepcopy

import pytest
import torch
from dtn_norms import OPTIONS, dense_dtn, random_mask, randomised

from mmlape.layout import Layout
from mmlape.norm import DTN, TokenNorm


def random_tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 2 + 1


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_dtn_is_the_dense_map_of_present_tokens(options):
    norm = randomised(DTN(8, 4, **options)).double()
    for grid in ((4, 6), (5, 7), (1, 9)):
        count = grid[0] * grid[1]
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


def test_a_norm_that_cannot_is_named():
    class MeanNorm(TokenNorm):
        mixes_tokens = True

        def standardise(self, x):
            return x - x.mean(dim=1, keepdim=True)

    tokens = torch.randn(2, 12, 8)
    assert MeanNorm(8)(tokens, Layout((3, 4))).shape == tokens.shape
    with pytest.raises(ValueError, match=r'MeanNorm.*no mask'):
        MeanNorm(8)(tokens, Layout((3, 4), mask=random_mask(2, 12, 5)))
