"""Attention, windows, the block and patch embedding."""

import pytest
import torch
import torch.nn.functional as F

from mmlape.layers import Attention, Block, Mlp, PatchEmbed, pad_to_multiple
from mmlape.layers.attention import merge, partition
from mmlape.layout import Layout


def plain_attention(module, tokens, mask=None):
    """The definition, with the N x N map written out."""
    batch, num, dims = tokens.shape
    qkv = module.qkv(tokens).view(batch, num, 3, module.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float('-inf'))
    out = scores.softmax(dim=-1) @ value
    return module.proj(out.transpose(1, 2).reshape(batch, num, dims))


def micro_block(window=None, **options):
    return Block(8, Attention(8, 2, window_size=window), Mlp(8, 32), **options)


def test_global_equals_the_definition():
    module, tokens = Attention(12, 3), torch.randn(2, 7, 12)
    assert torch.allclose(module(tokens, (1, 7)), plain_attention(module, tokens), atol=1e-6)


@pytest.mark.parametrize('num_prefix', [0, 2])
def test_windows_equal_a_masked_definition(num_prefix):
    """On a grid of whole windows: a cell sees its window and the prefix; the prefix sees all."""
    grid, window = (4, 6), (2, 3)
    module, tokens = Attention(12, 3, window_size=window), torch.randn(2, num_prefix + 24, 12)
    ids = torch.arange(24).view(grid)
    rows, columns = ids // 6, ids % 6
    window_of = ((rows // 2) * 2 + columns // 3).flatten()
    mask = torch.ones(num_prefix + 24, num_prefix + 24, dtype=torch.bool)
    mask[num_prefix:, num_prefix:] = window_of[:, None] == window_of[None]
    assert torch.allclose(module(tokens, grid), plain_attention(module, tokens, mask), atol=1e-6)


def test_padded_keys_take_part_in_the_softmax():
    """Published ViT-Adapter pads queries, keys and values with zeros after their projection."""
    module, tokens = Attention(4, 1, window_size=2), torch.randn(1, 3, 4)
    query, key, value = module.qkv(tokens).chunk(3, dim=-1)
    key, value = (F.pad(x[:, 2:], (0, 0, 0, 3)) for x in (key, value))  # window of token 2 alone
    expected = module.proj(F.scaled_dot_product_attention(query[:, 2:], key, value))
    assert torch.allclose(module(tokens, (1, 3))[:, 2:], expected, atol=1e-6)


@pytest.mark.parametrize('grid', [(1, 1), (5, 7), (4, 4), (2, 9)])
@pytest.mark.parametrize('window', [(1, 1), (3, 3), (2, 5), (14, 14)])
def test_merge_undoes_partition(grid, window):
    tokens = torch.randn(2, grid[0] * grid[1], 3)
    windows = partition(tokens, grid, window)
    count = -(-grid[0] // window[0]) * -(-grid[1] // window[1])
    assert windows.shape == (2 * count, window[0] * window[1], 3)
    assert torch.equal(merge(windows, grid, window), tokens)


@pytest.mark.parametrize('num_prefix', [0, 1])
@pytest.mark.parametrize('window', [None, 2])
def test_masked_cells_are_not_read(window, num_prefix):
    """What a mask hides changes nothing elsewhere; a mask of all that is there is none."""
    module, layout = Attention(8, 2, window_size=window), Layout((3, 5), num_prefix)
    tokens = torch.randn(2, layout.num_tokens, 8)
    mask = torch.rand(2, 15) > 0.4
    masked = Layout((3, 5), num_prefix, mask)
    other = torch.where(masked.token_mask()[..., None], tokens, torch.randn_like(tokens))
    seen, again = (module(x, masked)[masked.token_mask()] for x in (tokens, other))
    assert torch.allclose(seen, again, atol=1e-6)
    everywhere = Layout((3, 5), num_prefix, torch.ones(2, 15, dtype=torch.bool))
    assert torch.allclose(module(tokens, everywhere), module(tokens, layout), atol=1e-6)
    nobody = Layout((3, 5), num_prefix, torch.zeros(2, 15, dtype=torch.bool))
    assert module(tokens, nobody).isfinite().all()


@pytest.mark.parametrize('window', [None, 2])
def test_an_empty_batch(window):
    assert Attention(8, 2, window_size=window)(torch.randn(0, 15, 8), (3, 5)).shape == (0, 15, 8)


@pytest.mark.parametrize('window', [None, 2])
def test_gradcheck(window):
    module = Attention(4, 2, window_size=window).double()
    tokens = torch.randn(1, 7, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: module(x, (2, 3)), (tokens,))


def test_no_map_of_all_pairs_is_saved():
    module, num = Attention(8, 2), 300
    saved = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    )
    with hooks:
        module(torch.randn(1, num, 8, requires_grad=True), (1, num))
    assert max(saved) < num * num


def test_dropout_acts_in_training_only():
    module, tokens = Attention(8, 2, attn_drop_rate=0.5), torch.randn(1, 9, 8)
    assert not torch.equal(module(tokens, (3, 3)), module(tokens, (3, 3)))
    module.eval()
    assert torch.equal(module(tokens, (3, 3)), module(tokens, (3, 3)))


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        (dict(embed_dims=10, num_heads=3), 'must divide'),
        (dict(embed_dims=8, num_heads=2, window_size=0), 'window_size'),
        (dict(embed_dims=8, num_heads=2, attn_drop_rate=1.0), 'attn_drop_rate'),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        Attention(**options)


def test_block_formula():
    block, x, w = micro_block(layer_scale=0.5), torch.randn(2, 6, 8), torch.randn(1, 6, 8)
    y = x + 0.5 * block.attn(block.norm1(x) + w, (2, 3))
    y = y + 0.5 * block.mlp(block.norm2(y))
    assert torch.allclose(block(x, (2, 3), w), y, atol=1e-6)


def test_block_hands_the_grid_to_its_norms():
    block, seen = micro_block(), []
    for norm in (block.norm1, block.norm2):
        norm.forward = lambda tokens, grid=None: seen.append(grid) or tokens
    layout = Layout((2, 3))
    block(torch.randn(1, 6, 8), layout)
    assert seen == [layout, layout]


@pytest.mark.parametrize('window', [None, 2])
@pytest.mark.parametrize('position', [None, torch.randn(1, 7, 8)])
def test_block_compiles_as_one_graph(window, position):
    block, x = micro_block(window, layer_scale=1.0), torch.randn(2, 7, 8)
    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, backend='aot_eager')
    for where in ((2, 3), Layout((2, 3), 1)):
        assert torch.allclose(compiled(x, where, position), block(x, where, position), atol=1e-5)


@pytest.mark.parametrize('size', [(1, 1), (16, 16), (33, 70), (15, 17)])
def test_patch_embed_of_any_size(size):
    tokens, layout = PatchEmbed(3, 8, 16)(torch.randn(2, 3, *size))
    assert layout == Layout((-(-size[0] // 16), -(-size[1] // 16)))
    assert tokens.shape == (2, layout.num_tokens, 8)


def test_patch_embed_is_a_convolution_in_raster_order():
    module, image = PatchEmbed(3, 8, (4, 2)), torch.randn(1, 3, 8, 6)
    tokens, layout = module(image)
    by_hand = module.proj.weight.flatten(1) @ image[0, :, 4:8, 2:4].flatten() + module.proj.bias
    assert layout.grid == (2, 3) and torch.allclose(tokens[0, 3 + 1], by_hand, atol=1e-5)


def test_padding_is_at_the_bottom_and_right():
    padded = pad_to_multiple(torch.ones(1, 1, 3, 5), (4, 4))
    assert padded.shape == (1, 1, 4, 8) and padded[..., :3, :5].sum() == padded.sum() == 15


@pytest.mark.parametrize('shape', [(3, 16, 16), (1, 4, 16, 16), (1, 3, 0, 16)])
def test_no_image(shape):
    with pytest.raises(ValueError, match='image must have the shape'):
        PatchEmbed(3, 8, 16)(torch.zeros(shape))
