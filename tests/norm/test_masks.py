"""Padding takes no part in the statistics of token norms."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

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

DTN_OPTIONS = [
    dict(),
    dict(stabilize=False),
    dict(pool=2),
    dict(pool=3, stabilize=False),
    dict(variance_only=True, position_init='random'),
]


def randomised(norm):
    for parameter in norm.parameters():
        nn.init.normal_(parameter, std=0.5)
    return norm.double()


def random_tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 2 + 1


def random_mask(batch, cells, count):
    """As many cells of each image, in other places."""
    mask = torch.zeros(batch, cells, dtype=torch.bool)
    for row in mask:
        row[torch.randperm(cells)[:count]] = True
    return mask


def dense_dtn(norm, tokens, grid, mask):
    """One T x T softmax per image, head and cell, over the cells with tokens that are there."""
    pool, (height, width) = norm.pool, grid
    rows, columns = math.ceil(height / pool), math.ceil(width / pool)
    cell_of = torch.tensor(
        [(y // pool) * columns + x // pool for y in range(height) for x in range(width)]
    )
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing='ij')
    dx, dy = (axis.flatten()[:, None] - axis.flatten() for axis in (x, y))
    offsets = torch.stack([dx, dy, dx**2 + dy**2], dim=-1).to(tokens)
    exponents = (offsets @ norm.positions.weight.T).permute(2, 0, 1)
    outs = []
    for image, present in zip(tokens.unflatten(2, (norm.num_heads, -1)), mask, strict=True):
        if norm.stabilize:
            image = image * (image.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt()
        own_var = image.flatten(1).var(dim=1, correction=int(norm.stabilize))
        own_mean = image.flatten(1).mean(dim=1)
        members = [present & (cell_of == cell) for cell in range(rows * columns)]
        cells = torch.stack([image[m].mean(0) if m.any() else image[0] * 0 for m in members])
        there = torch.stack([m.any() for m in members])
        maps = exponents.masked_fill(~there, -math.inf).softmax(dim=-1)
        mean = torch.einsum('gij,jgd->igd', maps, cells)
        var = torch.einsum('gij,jgd->igd', maps, cells**2) - mean**2
        r_mean, r_var = norm.ratio_mean(image), norm.ratio_var(image)
        mean = r_mean * own_mean[:, None, None] + (1 - r_mean) * mean[cell_of]
        var = r_var * own_var[:, None, None] + (1 - r_var) * var[cell_of]
        outs.append(((image - mean) / (var + norm.eps).sqrt()).flatten(1))
    return torch.stack(outs) * norm.weight + norm.bias


@pytest.mark.parametrize('grid', [(4, 6), (5, 7), (1, 9)])
@pytest.mark.parametrize('options', DTN_OPTIONS, ids=str)
def test_dtn_is_the_dense_map_of_present_tokens(options, grid):
    count = grid[0] * grid[1]
    norm, mask = randomised(DTN(8, 4, **options)), random_mask(2, count, count // 2)
    mask[0] = torch.arange(count) < count // 3  # cells without any
    tokens = random_tokens(2, count, 8)
    out = norm(tokens, Layout(grid, mask=mask))
    expected = dense_dtn(norm, tokens, grid, mask)
    torch.testing.assert_close(out[mask], expected[mask])
    # in single precision as well
    single = deepcopy(norm).float()(tokens.float(), Layout(grid, mask=mask))
    torch.testing.assert_close(single[mask].double(), expected[mask], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('options', [*DTN_OPTIONS, dict(positions='uniform')], ids=str)
def test_dtn_gradients(options):
    norm = randomised(DTN(4, 2, **options))
    names, parameters = zip(*norm.named_parameters(), strict=True)
    layout = Layout((3, 4), 1, random_mask(2, 12, 5))
    tokens = random_tokens(2, 13, 4).requires_grad_()

    def call(tokens, *values):
        return torch.func.functional_call(
            norm, dict(zip(names, values, strict=True)), (tokens, layout)
        )

    assert torch.autograd.gradcheck(call, (tokens, *parameters))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_dtn_where_its_map_sees_padding_alone(dtype):
    """A head that looks at the far left only, which is padding: all that is there counts alike."""
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
    norm = randomised(build_token_norm(config, 8))
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
