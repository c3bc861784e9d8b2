"""The normalisers that DTN is compared with."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_vit

from mmlape.checkpoints import convert
from mmlape.norm import (
    LN,
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
