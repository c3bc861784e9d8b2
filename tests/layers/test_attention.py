"""Attention, windows, the block and patch embedding. Values on odd grids: tests/test_frozen_values.py."""

import pytest
import torch

from mmlape.layers import Attention, Block, Mlp, PatchEmbed, SpatialReductionAttention
from mmlape.layers.attention import merge, partition
from mmlape.layout import Layout


def test_global_equals_the_definition():
    """With the N x N map written out."""
    module, tokens = Attention(12, 3), torch.randn(2, 7, 12)
    query, key, value = module.qkv(tokens).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    out = (query @ key.mT / 2).softmax(dim=-1) @ value
    expected = module.proj(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(tokens, (1, 7)), expected)


@pytest.mark.parametrize('grid', [(1, 1), (5, 7), (4, 4), (2, 9)])
@pytest.mark.parametrize('window', [(1, 1), (3, 3), (2, 5), (14, 14)])
def test_merge_undoes_partition(grid, window):
    tokens = torch.randn(2, grid[0] * grid[1], 3)
    windows = partition(tokens, grid, window)
    count = -(-grid[0] // window[0]) * -(-grid[1] // window[1])
    assert windows.shape == (2 * count, window[0] * window[1], 3)
    assert torch.equal(merge(windows, grid, window), tokens)


@pytest.mark.parametrize('window', [None, 2])
def test_an_empty_batch(window):
    assert Attention(8, 2, window_size=window)(torch.randn(0, 15, 8), (3, 5)).shape == (0, 15, 8)


def largest_saved(module, *arguments):
    """Values of the largest tensor that is saved for the backward pass."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        module(*arguments)
    return max(saved)


def test_no_map_of_scores_is_saved():
    tokens = torch.randn(1, 300, 8, requires_grad=True)
    assert largest_saved(Attention(8, 2), tokens, (1, 300)) < 300 * 300
    reduced = SpatialReductionAttention(8, 1, sr_ratio=2)
    assert largest_saved(reduced, torch.randn(1, 48 * 48, 8), (48, 48)) < 48 * 48 * 24 * 24 / 10


def test_block_formula():
    block = Block(8, Attention(8, 2), Mlp(8, 32), layer_scale=0.5)
    x, w = torch.randn(2, 6, 8), torch.randn(1, 6, 8)
    y = x + 0.5 * block.attn(block.norm1(x) + w, (2, 3))
    y = y + 0.5 * block.mlp(block.norm2(y))
    assert torch.allclose(block(x, (2, 3), w), y, atol=1e-6)


def test_patch_embed_is_a_convolution_in_raster_order():
    module, image = PatchEmbed(3, 8, (4, 2)), torch.randn(1, 3, 8, 6)
    tokens, layout = module(image)
    by_hand = module.proj.weight.flatten(1) @ image[0, :, 4:8, 2:4].flatten() + module.proj.bias
    assert layout.grid == (2, 3) and torch.allclose(tokens[0, 3 + 1], by_hand, atol=1e-5)


@pytest.mark.parametrize('shape', [(3, 16, 16), (1, 4, 16, 16), (1, 3, 0, 16)])
def test_no_image(shape):
    with pytest.raises(ValueError, match='image must have the shape'):
        PatchEmbed(3, 8, 16)(torch.zeros(shape))


@pytest.mark.parametrize('window', [None, 2])
def test_an_image_of_padding_alone_is_finite(window):
    nobody = Layout((3, 5), 1, torch.zeros(2, 15, dtype=torch.bool))
    assert Attention(8, 2, window_size=window)(torch.randn(2, 16, 8), nobody).isfinite().all()


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
