"""The normalisers that DTN is compared with."""

import math

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_vit

from mmlape import cpu
from mmlape.checkpoints import convert
from mmlape.layout import Layout
from mmlape.norm import (
    LN,
    Derf,
    DyT,
    PowerNorm,
    ScaleNorm,
    SwitchableNorm,
    TokenBN,
    TokenGN,
    TokenIN,
    build_token_norm,
)

PUBLISHED = {
    'scalenorm': ScaleNorm,
    'instancenorm': TokenIN,
    'batchnorm': TokenBN,
    'groupnorm': TokenGN,
    'powernorm': PowerNorm,
}


@pytest.mark.parametrize('name', sorted(PUBLISHED))
def test_published_training_and_evaluation(golden, name):
    meta, state, arrays = golden(f'norm_{name}')
    options = {}
    if PUBLISHED[name] in (TokenGN, PowerNorm):
        options['num_groups'] = meta['groups']
    if PUBLISHED[name] is PowerNorm:
        options['warmup_iters'] = meta['warmup_iters']
    norm = PUBLISHED[name](meta['num_features'], **options)
    norm.load_state_dict(convert(state, 'dtn', norm, min_matched=1), strict=True)
    for step in [f'train{i}' for i in range(5)] + ['eval']:
        norm.train(step != 'eval')
        out = norm(arrays[f'input/{step}'])
        torch.testing.assert_close(out, arrays[f'output/{step}'], atol=1e-5, rtol=0)
    after = {k.removeprefix('state_after/'): v for k, v in arrays.items() if 'state_after/' in k}
    torch.testing.assert_close(
        dict(norm.state_dict()), convert(after, 'dtn', norm), atol=1e-5, rtol=0
    )


def test_power_norm_subtracts_what_the_gradient_has_along_the_output():
    norm = PowerNorm(8, warmup_iters=2, alpha_backward=0.5)
    for call in range(3):
        tokens = torch.randn(2, 6, 8, requires_grad=True)
        before = norm.running_along.clone()
        out = norm(tokens)
        norm_out = out.detach()
        out.backward(torch.ones_like(out))
        left = 1 - 0.5 * before * norm_out
        torch.testing.assert_close(norm.running_along, before + (left * norm_out).mean(dim=(0, 1)))
        assert norm.num_calls == call + 1


def test_switchable_norm_mixes_by_its_weights():
    tokens = torch.randn(2, 6, 8)
    norm = SwitchableNorm(8, use_bn=True)
    alone = {
        0: TokenIN(8)(tokens),
        1: F.layer_norm(tokens, (8,)),
        2: F.batch_norm(tokens.flatten(0, 1), None, None, training=True).view_as(tokens),
    }
    for choice, expected in alone.items():
        for weights in (norm.mean_weight, norm.var_weight):
            weights.data.fill_(-100.0)[choice] = 100.0
        torch.testing.assert_close(norm(tokens), expected, atol=1e-5, rtol=0)


def test_switchable_norm_in_evaluation_uses_running_statistics():
    norm, tokens = SwitchableNorm(8, use_bn=True, momentum=1.0), torch.randn(2, 6, 8)
    norm(tokens)
    torch.testing.assert_close(norm.running_mean, tokens.mean(dim=(0, 1)))
    norm.eval()
    before = norm.running_mean.clone()
    first, second = norm(tokens[:1]), norm(torch.cat([tokens[:1], tokens[1:] * 9]))[:1]
    torch.testing.assert_close(first, second)
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize('name', ['TokenGN', 'PowerNorm'])
def test_as_many_groups_as_heads(name):
    """As in DTN's comparison; 4 where a config does not ask for it, whatever the heads."""
    for groups, count in (('heads', 3), (6, 6), (None, 4)):
        config = dict(type=f'mmlape.{name}', **({} if groups is None else dict(num_groups=groups)))
        model = build_vit(norm_cfg=dict(config, layers=3), prefix_after=3)
        assert [block.norm1.num_groups for block in model.blocks[:3]] == [count] * 3
        assert isinstance(model.blocks[3].norm2, LN) and isinstance(model.norm, LN)
    first, second = (
        build_token_norm(dict(config, num_groups=g, num_heads=2), 8) for g in ('heads', 2)
    )
    tokens = torch.randn(2, 5, 8)
    assert torch.equal(first(tokens), second(tokens))


def test_scale_norm_starts_with_tokens_of_length_sqrt_c():
    out = ScaleNorm(16)(torch.randn(2, 5, 16))
    torch.testing.assert_close(out.norm(dim=-1), torch.full((2, 5), 4.0))


@pytest.mark.parametrize('cls', [DyT, Derf])
def test_functions_instead_of_norms_are_their_formulas(cls):
    """With all gradients, and the same on any grid, with prefix tokens and a mask."""
    norm, tokens = cls(4).double(), torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    assert norm.no_weight_decay == tuple(n for n, p in norm.named_parameters() if p.numel() == 1)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    out, above = norm(tokens), torch.randn(2, 7, 4, dtype=torch.float64)
    (out * above).sum().backward()
    x, weight, bias = tokens.detach(), norm.weight.detach(), norm.bias.detach()
    if cls is DyT:
        value = (norm.alpha.item() * x).apply_(math.tanh)
        slope = 1 - value**2
    else:
        argument = norm.alpha.item() * x + norm.shift.item()
        value = argument.clone().apply_(math.erf)
        slope = 2 / math.sqrt(math.pi) * (-(argument**2)).exp()
        torch.testing.assert_close(norm.shift.grad, (above * weight * slope).sum().view(1))
    torch.testing.assert_close(out, weight * value + bias)
    torch.testing.assert_close(tokens.grad, above * weight * slope * norm.alpha)
    torch.testing.assert_close(norm.alpha.grad, (above * weight * slope * x).sum().view(1))
    torch.testing.assert_close(norm.weight.grad, (above * value).sum((0, 1)))
    torch.testing.assert_close(norm.bias.grad, above.sum((0, 1)))
    mask = torch.tensor([[True, False] * 3, [True] * 6])
    for grid in ((1, 7), Layout((2, 3), 1), Layout((2, 3), 1, mask)):
        assert torch.equal(norm(tokens, grid), out)


@pytest.mark.parametrize('cls', [DyT, Derf])
@pytest.mark.parametrize('alpha', [0.0, 1e-30, 1e30, -1e30, 3e38])
def test_functions_instead_of_norms_at_extreme_slopes(cls, alpha):
    """Under autocast too: products that overflow are the ends of the function."""
    norm, tokens = cls(4), torch.tensor([[[0.0, 1e-3, -6e4, 6e4]]], requires_grad=True)
    torch.nn.init.constant_(norm.alpha, alpha)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        with torch.autocast('cpu', dtype=dtype, enabled=dtype != torch.float32):
            out = norm(tokens.to(dtype))
        assert out.dtype == dtype and out.abs().max() <= 1
        if abs(alpha) >= 1:
            assert out.tolist() == [[[0, 1, -1, 1]]] if alpha > 0 else [[[0, -1, 1, -1]]]
        gradients = torch.autograd.grad(out.float().sum(), [tokens, *norm.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients[1:])
        assert not gradients[0].isnan().any()  # at 0, alpha itself may be more than float16 holds


@pytest.mark.parametrize('name', ['DyT', 'Derf'])
def test_functions_instead_of_norms_are_no_layer_norm(name):
    """In all places of a ViT, and nothing takes them for a LayerNorm; LaPE's own stays one."""
    model = build_vit(norm_cfg=dict(type=f'mmlape.{name}'), joining=dict(type='mmlape.LaPE')).eval()
    kinds = {type(norm).__name__ for b in model.blocks for norm in (b.norm1, b.norm2)}
    assert kinds == {name} == {type(model.norm).__name__}
    assert all(isinstance(norm, torch.nn.LayerNorm) for norm in model.position.joining.norms)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    image = torch.randn(1, 3, 40, 72)
    with torch.no_grad():
        expected = model(image)
        torch.testing.assert_close(cpu.optimize(model)(image), expected, atol=1e-4, rtol=1e-4)
