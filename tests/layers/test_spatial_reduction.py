"""Spatial-reduction attention, the convolutional MLP, and the embedding of a stage."""

import pytest
import torch
import torch.nn.functional as F

from mmlape.layers import ConvMlp, PatchEmbed, SpatialReductionAttention
from mmlape.layout import Layout


def plain_attention(module, tokens, source):
    """The definition, with the N x M map written out."""
    batch, num, dims = tokens.shape
    heads = module.num_heads
    query = module.q(tokens).view(batch, num, heads, -1).transpose(1, 2)
    key, value = (
        part.view(batch, -1, heads, dims // heads).transpose(1, 2)
        for part in module.kv(source).chunk(2, dim=-1)
    )
    scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
    out = scores.softmax(dim=-1) @ value
    return module.proj(out.transpose(1, 2).reshape(batch, num, dims))


def to_maps(tokens, grid):
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)


def to_tokens(maps):
    return maps.flatten(2).transpose(1, 2)


def test_without_reduction_prefix_tokens_take_part():
    module, tokens = SpatialReductionAttention(12, 3), torch.randn(2, 1 + 6, 12)
    expected = plain_attention(module, tokens, tokens)
    assert torch.allclose(module(tokens, (2, 3)), expected, atol=1e-6)
    assert 'sr.weight' not in module.state_dict()


@pytest.mark.parametrize('grid', [(4, 6), (5, 7), (1, 1), (3, 2)])
def test_keys_come_from_the_reduced_grid(grid):
    """What is missing of a last cell counts as zero."""
    module = SpatialReductionAttention(12, 3, sr_ratio=2)
    tokens = torch.randn(2, grid[0] * grid[1], 12)
    maps = F.pad(to_maps(tokens, grid), (0, grid[1] % 2, 0, grid[0] % 2))
    source = module.norm(to_tokens(module.sr(maps)))
    expected = plain_attention(module, tokens, source)
    assert torch.allclose(module(tokens, grid), expected, atol=1e-6)


@pytest.mark.parametrize('grid', [(14, 21), (9, 30), (2, 3)])
def test_linear_attention_has_49_keys_on_any_grid(grid):
    module = SpatialReductionAttention(12, 3, sr_ratio=8, linear=True)
    tokens = torch.randn(2, grid[0] * grid[1], 12)
    pooled = module.sr(F.adaptive_avg_pool2d(to_maps(tokens, grid), 7))
    source = F.gelu(module.norm(to_tokens(pooled)))
    assert source.shape[1] == 49
    expected = plain_attention(module, tokens, source)
    assert torch.allclose(module(tokens, grid), expected, atol=1e-6)


def test_no_map_of_scores_is_held():
    """What is saved for the backward pass grows with N + M, not with N x M."""
    module, sizes = SpatialReductionAttention(8, 1, sr_ratio=2), []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.numel()) or t, lambda t: t
    )
    with hooks:
        module(torch.randn(1, 48 * 48, 8), (48, 48))
    assert max(sizes) < 48 * 48 * 24 * 24 / 10


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        (dict(num_heads=5), 'num_heads must divide embed_dims'),
        (dict(num_heads=3, sr_ratio=0), 'sr_ratio must be at least 1'),
        (dict(num_heads=3, attn_drop_rate=1), 'attn_drop_rate'),
    ],
)
def test_bad_values(options, match):
    with pytest.raises(ValueError, match=match):
        SpatialReductionAttention(12, **options)


@pytest.mark.parametrize('extra_relu', [False, True])
def test_conv_mlp_equals_the_definition(extra_relu):
    module, tokens, grid = ConvMlp(6, 10, extra_relu=extra_relu), torch.randn(2, 12, 6), (3, 4)
    hidden = module.fc1(tokens)
    hidden = hidden.clamp(min=0) if extra_relu else hidden
    conv = module.dwconv['dwconv']
    maps = F.conv2d(to_maps(hidden, grid), conv.weight, conv.bias, padding=1, groups=10)
    expected = module.fc2(F.gelu(to_tokens(maps)))
    assert torch.allclose(module(tokens, grid), expected, atol=1e-6)


@pytest.mark.parametrize(('stride', 'kernel'), [(4, 4), (2, 2), (4, 7), (2, 3)])
def test_patch_embed_covers_any_size(stride, kernel):
    module = PatchEmbed(3, 8, kernel, stride, dict(type='mmlape.LN', eps=1e-5))
    for size in [(1, 1), (8, 12), (9, 11), (2, 17)]:
        maps = torch.randn(1, 3, *size, requires_grad=True)
        tokens, layout = module(maps)
        assert layout == Layout((-(-size[0] // stride), -(-size[1] // stride)))
        assert layout.grid == module.grid_of(size) and tokens.shape == (1, layout.num_tokens, 8)
        (grad,) = torch.autograd.grad(tokens.square().mul(torch.rand_like(tokens)).sum(), maps)
        assert grad.abs().sum(dim=1).ne(0).all()


def test_patch_embed_refuses_patches_smaller_than_the_stride():
    with pytest.raises(ValueError, match='patch_size must be at least the stride'):
        PatchEmbed(3, 8, 3, 4)
