"""Attention, windows, the block and patch embedding. Values on odd grids: tests/test_frozen_values.py."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from agreement import randomised
from backbone_variants import build_vit
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from mmlape.backbones.base import exempt_parameters
from mmlape.layers import (
    Attention,
    AttentionLayer,
    DifferentialAttention,
    PatchEmbed,
    ShiftedWindowAttention,
    SpatialReductionAttention,
    attention,
)
from mmlape.layout import Layout
from mmlape.registry import MODELS


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


@pytest.mark.parametrize('layer', [0, 3])
@pytest.mark.parametrize('biased', [False, True])
def test_the_difference_of_two_maps(layer, biased):
    """The paper's equations, written out; both maps have the same position."""
    sizes = dict(embed_dims=12, num_heads=2)
    bias = MODELS.build(dict(type='mmlape.RelativePositionBias', grid=(3, 5), **sizes)).double()
    attention = DifferentialAttention(**sizes, layer=layer, position=bias if biased else None)
    for parameter in attention.double().parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.randn(2, 15, 12, dtype=torch.float64)
    query, key, value = attention.qkv(tokens).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    maps = []
    for half in (slice(0, 3), slice(3, 6)):
        scores = query[..., half] @ key[..., half].mT / 3**0.5
        maps.append((scores + bias.bias(Layout((3, 5)), Layout((3, 5))) * biased).softmax(-1))
    first = 0.8 - 0.6 * math.exp(-0.3 * layer)
    pairs = ((attention.lambda_q1, attention.lambda_k1), (attention.lambda_q2, attention.lambda_k2))
    plus, minus = (torch.dot(*pair).exp() for pair in pairs)
    read = (maps[0] - (plus - minus + first) * maps[1]) @ value
    read = read / (read.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.sub_norm.weight
    expected = attention.proj((read * (1 - first)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(tokens, (3, 5)), expected)


def test_layers_of_differential_attention():
    """A network numbers them; branches side by side start apart; nothing of the difference decays."""
    model = build_vit(
        attention=dict(type='mmlape.DifferentialAttention'),
        block=dict(type='mmlape.SeveralBranchesBlock'),
    )
    found = [block.attn.lambda_init for block in model.blocks]
    assert found == pytest.approx([0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(4)])
    block = model.blocks[1]
    assert not torch.equal(block.attn.lambda_q1, block.others[0].attn.lambda_q1)
    assert block.others[0].attn.lambda_init == block.attn.lambda_init
    assert {'blocks.2.attn.lambda_q1', 'blocks.2.attn.lambda_k2'} <= exempt_parameters(model)


def test_no_map_of_a_difference_is_saved():
    tokens = torch.randn(1, 300, 8, requires_grad=True)
    assert largest_saved(DifferentialAttention(8, 2), tokens, (1, 300)) < 300 * 300


@pytest.mark.parametrize('shape', [(3, 16, 16), (1, 4, 16, 16), (1, 3, 0, 16)])
def test_no_image(shape):
    with pytest.raises(ValueError, match='image must have the shape'):
        PatchEmbed(3, 8, 16)(torch.zeros(shape))


@pytest.mark.parametrize('step', [1, 2, 3, 4, 7])
def test_the_grid_of_overlapping_patches(step):
    """Of odd and even sides, in a height that is a multiple of the stride and a width that is not."""
    for side in range(step, 12):
        if step == 1 < side and side % 2 == 0:
            with pytest.raises(ValueError, match='patch_size must be odd where stride is 1'):
                PatchEmbed(3, 8, side, step)
            continue
        stem, size = PatchEmbed(3, 8, (side, step), (step, step)), (4 * step, 4 * step + 1)
        tokens, layout = stem(torch.zeros(1, 3, *size))
        assert layout.grid == stem.grid_of(size) and tokens.shape[1] == layout.num_cells


def test_patch_embed_refuses_patches_smaller_than_the_stride():
    with pytest.raises(ValueError, match='patch_size must be at least the stride'):
        PatchEmbed(3, 8, 3, 4)


PARTS_OF_QUERIES = [
    # images, heads, queries, keys, multiprocessors: parts
    ((1, 1, 60800, 950, 132), 16),  # PVT's stages at 800 x 1216 on an H100
    ((1, 2, 15200, 950, 132), 8),
    ((1, 5, 3800, 950, 132), 2),
    ((1, 8, 950, 950, 132), 1),
    ((8, 1, 60800, 950, 132), 2),
    ((9, 1, 60800, 950, 132), 1),  # blocks suffice
    ((1, 1, 60800, 950, 20), 2),
    ((1, 1, 60800, 950, 1), 1),  # a CPU
    ((1, 1, 257 * 9, 49, 132), 9),  # an odd number
    ((1, 1, 7919, 49, 132), 1),  # a prime
    ((1, 1, 300, 49, 132), 2),  # no less queries than a block has keys
    ((0, 1, 60800, 950, 132), 50),
]


@pytest.mark.parametrize(('sizes', 'parts'), PARTS_OF_QUERIES)
def test_parts_of_queries(sizes, parts, monkeypatch):
    images, heads, queries, keys, processors = sizes
    monkeypatch.setattr(attention, '_multiprocessors', lambda device: processors)
    query = torch.empty(1, 1, 1, 1).expand(images, heads, queries, 1)
    assert attention._query_parts(query, query[:, :, :keys]) == parts


class Queries(TorchFunctionMode):
    """Shapes of the queries of each ``scaled_dot_product_attention``."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


WHOLE, IN_PARTS = (2, 2, 9 * 43, 4), (6, 2, 3 * 43, 4)


@pytest.mark.parametrize(
    ('position', 'options', 'expected'),
    [
        (None, {}, IN_PARTS),
        (None, dict(linear=True), IN_PARTS),
        (None, dict(attn_drop_rate=0.5), IN_PARTS),  # in evaluation
        ('GaborAttention', {}, (*IN_PARTS[:3], 8)),  # queries and keys are wider than values
        ('RelativePositionBias', {}, WHOLE),
    ],
)
def test_queries_in_parts_read_the_same(position, options, expected, monkeypatch):
    sizes = dict(embed_dims=8, num_heads=2)
    layer = SpatialReductionAttention(**sizes, **{'sr_ratio': 3} | options)
    if position is not None:
        layer.position = MODELS.build(dict(type=f'mmlape.{position}', grid=(9, 43), **sizes))
    layer = randomised(layer.double()).eval()
    tokens = torch.randn(2, 9 * 43, 8, dtype=torch.float64, requires_grad=True)
    recomputed = partial(checkpoint, layer, use_reentrant=False)
    results, leaves = [], [tokens, *layer.parameters()]
    for call, processors in ((layer, 1), (recomputed, 1000), (layer, 1000)):
        monkeypatch.setattr(attention, '_multiprocessors', lambda device, n=processors: n)
        with Queries() as seen:
            out = call(tokens, (9, 43))
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        torch.testing.assert_close(results[-1], results[0], rtol=1e-9, atol=1e-9)
    assert seen.shapes == ([] if expected == WHOLE else [expected])  # a bias: products on a CPU
    with torch.no_grad(), Queries() as seen:
        layer(tokens, (9, 43))
    assert [shape[0] for shape in seen.shapes] == [2]


@pytest.mark.parametrize('way', ['dropout', 'bias', 'mask'])
def test_queries_stay_whole(way, monkeypatch):
    monkeypatch.setattr(attention, '_multiprocessors', lambda device: 1000)
    layer = AttentionLayer(8, 2, attn_drop_rate=0.5).train(way == 'dropout')
    query, key = torch.randn(2, 2, 387, 4, requires_grad=True), torch.randn(2, 2, 5, 4)
    bias = torch.zeros(2, 387, 5) if way == 'bias' else None
    mask = torch.arange(5).expand(2, -1) < 4 if way == 'mask' else None
    with Queries() as seen:
        layer.read(query, key, key, bias, mask)
    assert seen.shapes == [WHOLE]


def test_a_graph_of_any_size_keeps_queries_whole(monkeypatch):
    """Else, it would be of sizes that are cut into as many parts."""
    monkeypatch.setattr(attention, '_multiprocessors', lambda device: 1000)
    layer, graphs = AttentionLayer(8, 2), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    read = torch.compile(layer.read, backend=backend, dynamic=True, fullgraph=True)
    for queries in (387, 512):
        query, key = torch.randn(2, 2, queries, 4, requires_grad=True), torch.randn(2, 2, 5, 4)
        torch.testing.assert_close(read(query, key, key), layer.read(query, key, key))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ('grid', 'moved'), [((2, 3), (0, 0)), ((4, 3), (1, 0)), ((2, 6), (0, 1)), ((4, 6), (1, 1))]
)
def test_an_axis_of_one_window_is_shifted_only_if_asked(grid, moved):
    for alone, wanted in ((False, moved), (True, (1, 1))):
        layer = ShiftedWindowAttention(8, 2, window_size=(2, 3), shift=1, shift_alone=alone)
        assert layer.shift_on(grid) == wanted


@pytest.mark.parametrize('shift', [(1, 2), (2, 0), (0, 1)])
def test_moved_windows_against_the_definition(shift):
    """Cells see those of their moved window, on a grid padded with zeros."""
    window, grid, padded = (3, 4), (8, 7), (9, 8)
    layer = randomised(ShiftedWindowAttention(8, 2, window_size=window, shift=shift)).eval()
    tokens = torch.randn(2, 8 * 7, 8)
    cells = torch.cartesian_prod(*map(torch.arange, padded))
    windows = (cells - torch.tensor(shift)).div(torch.tensor(window), rounding_mode='floor')
    seen = (windows[:, None] == windows).all(-1)
    maps = F.pad(tokens.unflatten(1, grid), (0, 0, 0, 1, 0, 1)).flatten(1, 2)
    read = F.scaled_dot_product_attention(*layer.split_heads(layer.qkv(maps), 3), seen)
    expected = layer.project(attention.merge_heads(read)).unflatten(1, padded)[:, :8, :7]
    torch.testing.assert_close(layer(tokens, grid), expected.flatten(1, 2), atol=1e-5, rtol=1e-4)
