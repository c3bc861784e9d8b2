"""Every registered token norm: gradients, hard inputs, recomputation, half precision, what it says of itself."""

import itertools
from copy import deepcopy

import pytest
import torch
from dtn_norms import randomised as randomise
from registered import registered

from mmlape.layout import Layout
from mmlape.norm import DTN, LN, PowerNorm, TokenNorm, build_token_norm, norm_class

NORMS = sorted(name for name, made in registered().items() if issubclass(made, TokenNorm))
# Options with which a norm is tested, where those of its constructor are not enough.
OPTIONS = {
    'DTN': [dict(num_heads=2), dict(num_heads=2, pool=2)],
    'DyT': [dict(), dict(alpha_init=2.0)],
    'PowerNorm': [dict(warmup_iters=2), dict()],
    'SwitchableNorm': [dict(), dict(use_bn=True)],
    'TokenBN': [dict(), dict(momentum=0.5)],
    'TokenGN': [dict(num_groups=2), dict(num_groups=8)],
}
CONFIGS = [
    dict(type=f'mmlape.{name}', **each) for name in NORMS for each in OPTIONS.get(name, [{}])
]
MASK = torch.tensor([[1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0]])
LAYOUTS = [Layout((3, 4), 1), Layout((3, 4), 1, MASK.bool())]
every_norm = pytest.mark.parametrize('config', CONFIGS, ids=str)


def randomised(config):
    return randomise(build_token_norm(config, 8))


def random_tokens(requires_grad=False):
    return (3 * torch.randn(2, 13, 8) + 1).requires_grad_(requires_grad)


@every_norm
def test_model_of_another_precision(config):
    made, tokens = randomised(config), random_tokens()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        exact, norm = deepcopy(made).to(dtype).float(), deepcopy(made).to(dtype)
        for training, layout in itertools.product((True, False), LAYOUTS):
            x = tokens.to(dtype).requires_grad_()
            out = norm.train(training)(x, layout)
            expected = exact.train(training)(x.float(), layout)
            out.float().sum().backward()
            assert out.dtype == dtype and x.grad.isfinite().all()
            error = (out - expected).float().abs().max() / expected.abs().max()
            assert error < (1e-5 if dtype == torch.float64 else 0.05), dtype
            if not isinstance(norm, LN):  # PyTorch's takes only tokens of its own precision
                assert deepcopy(norm)(tokens, layout).dtype == torch.float32
        assert all(b.dtype == dtype for b in norm.buffers() if b.is_floating_point())


@every_norm
def test_says_what_it_does(config):
    """Its attributes are right: whether it mixes tokens and has running statistics."""
    norm, tokens = randomised(config), random_tokens()
    assert isinstance(norm, norm_class(config)) and isinstance(norm, TokenNorm)
    other = tokens.clone()
    other[:, 3] += torch.randn(8)
    before = {name: value.clone() for name, value in norm.named_buffers()}
    first, second = deepcopy(norm)(tokens, (3, 4)), norm(other, (3, 4))
    rest = torch.arange(13) != 3
    if norm.mixes_tokens and norm.training:
        if not (isinstance(norm, DTN) or config['type'] == 'mmlape.PowerNorm'):
            assert not torch.allclose(first[:, rest], second[:, rest])
    else:
        assert torch.equal(first[:, rest], second[:, rest])
    changed = any(not torch.equal(value, before[name]) for name, value in norm.named_buffers())
    assert changed == norm.keeps_statistics == bool(before)
    children = {name for name, _ in norm.named_children()} | {n for n, _ in norm.named_parameters()}
    assert set(norm.no_weight_decay) <= children
    assert norm.by_head == (config['type'] in ('mmlape.DTN', 'mmlape.TokenGN', 'mmlape.PowerNorm'))


@every_norm
@pytest.mark.parametrize('training', [True, False])
def test_gradients(config, training):
    norm = randomised(config).double().train(training)
    tokens = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    out = norm(tokens, (2, 3))
    out.square().sum().backward()
    assert out.shape == tokens.shape and out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in norm.parameters())
    if training and isinstance(norm, PowerNorm):
        return  # its gradient is an estimate by design
    assert torch.autograd.gradcheck(
        lambda x: norm(x, (2, 3)), (tokens.detach().requires_grad_(),), fast_mode=True
    )


@every_norm
def test_hard_inputs(config):
    hard = {
        'constant': torch.full((2, 6, 8), 3.0),
        'zero': torch.zeros(2, 6, 8),
        'large': torch.randn(2, 6, 8) * 1e4,
        'one token': torch.randn(1, 1, 8),
        'padding': torch.arange(-3.0, 3).mul(200).view(1, 6, 1).expand(2, 6, 8),
    }
    for kind, dtype in itertools.product(hard, (torch.float16, torch.bfloat16, torch.float32)):
        tokens, norm = hard[kind].to(dtype, copy=True), build_token_norm(config, 8)
        one_visible = torch.arange(6).expand(2, -1) == 2 if kind == 'padding' else None
        out = norm(tokens.requires_grad_(), Layout((1, tokens.shape[1]), mask=one_visible))
        out.float().sum().backward()
        assert out.dtype == dtype and out.isfinite().all(), (kind, dtype)
        # at zero, a slope of 1 / eps may be more than float16 holds
        assert not tokens.grad.isnan().any(), (kind, dtype)
