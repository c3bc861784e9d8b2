"""Gabor position in the attention: formula, published counts, windows, precision."""

import copy
import itertools

import pytest
import torch
from backbone_variants import randomise

from mmlape.layers import Attention
from mmlape.layers.attention import partition
from mmlape.layout import Layout
from mmlape.position import GaborAttention

PARTS = ['4', '2,3', '2,3,4', None]
DIMS, HEADS, PREFIX, GRID = 12, 3, 2, (3, 4)


def position(grid=GRID, prefix=PREFIX, **options):
    return randomise(GaborAttention(DIMS, HEADS, grid, prefix, **options))


def attention(window=None, **options):
    module = Attention(
        DIMS, HEADS, window_size=window, position=position(window_size=window, **options)
    )
    return randomise(module)


def in_heads(rows):
    return rows.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


def explicit(module, tokens, grid, mask=None):
    """The docstring's formula, part by part, with the N x N map written out."""
    pos, cells = module.position, grid[0] * grid[1]
    query, key, value = (in_heads(part) for part in module.qkv(tokens).chunk(3, dim=-1))

    def of(embedding):
        rows = embedding(grid)[0]
        missing = tokens.shape[1] - len(rows)
        assert len(rows) in (cells, cells + PREFIX)
        return in_heads(torch.cat([rows.new_zeros(missing, rows.shape[1]), rows]))

    scores = query @ key.mT
    if '2' in pos.parts:
        scores = scores + of(pos.query_on_content) @ key.mT + query @ of(pos.key_on_content).mT
    if '4' in pos.parts:
        scores = scores + of(pos.query) @ of(pos.key or pos.query).mT
    scores = scores / (DIMS // HEADS) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float('-inf'))
    if pos.value is not None:
        value = value + of(pos.value)
    return module.proj((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize('parts', ['4', '2,3', '2,3,4'])
def test_equals_the_formula_on_any_grid(parts):
    kinds = ('G+E', 'E'), ('G', 'G+E'), ('E', 'G'), ('LE', 'LE'), ('G+E', None)
    for (query_key, value), grid in itertools.product(kinds, (GRID, (1, 1), (5, 2))):
        module = attention(parts=parts, query_key=query_key, value=value)
        tokens = torch.randn(2, PREFIX + grid[0] * grid[1], DIMS)
        expected = explicit(module, tokens, grid)
        assert torch.allclose(module(tokens, grid), expected, atol=1e-5), (query_key, value, grid)


def test_edge_markers_alone():
    module, tokens = attention(parts=None), torch.randn(2, PREFIX + 12, DIMS)
    assert torch.allclose(module(tokens, GRID), explicit(module, tokens, GRID), atol=1e-5)
    query, key, value = (torch.randn(1, HEADS, PREFIX + 12, 4) for _ in range(3))
    plan = module.position(Layout(GRID, PREFIX))
    same_query, same_key, moved = plan.place(query, key, value)
    assert same_query is query and same_key is key
    assert plan.bias(Layout(GRID), Layout(GRID)) is None
    added = (moved - value)[0, :, PREFIX:].unflatten(1, GRID)
    # One interior row of two columns: no marker, the same bias. A corner has both of its edges.
    assert torch.allclose(added[:, 1, 1], added[:, 1, 2], atol=1e-6)
    corner, inside = added[:, 0, 0], added[:, 1, 1]
    assert torch.allclose(corner - inside, added[:, 0, 1] + added[:, 1, 0] - 2 * inside, atol=1e-5)


def test_parts_as_a_command_line_gives_them():
    for value, parts in ((4, '4'), ([2, 3], '2,3'), ((2, 3, 4), '2,3,4')):
        assert position(parts=value).parts == position(parts=parts).parts


@pytest.mark.parametrize(('parts', 'widths'), [('4', 4 + 5), ('2,3,4', 4 + 4 + 5)])
def test_the_number_of_position_channels(parts, widths):
    module, tokens = attention(parts=parts, channels=5), torch.randn(1, PREFIX + 12, DIMS)
    plan = module.position(Layout(GRID, PREFIX))
    query, key, value = plan.place(*(torch.randn(1, HEADS, 14, 4) for _ in range(3)))
    assert query.shape == key.shape == (1, HEADS, 14, widths) and value.shape[-1] == 4
    assert torch.allclose(module(tokens, GRID), explicit(module, tokens, GRID), atol=1e-5)


@pytest.mark.parametrize('parts', PARTS)
def test_a_window_is_global_attention_restricted_to_it(parts):
    """Places and edges are the image's; the prefix attends to all."""
    grid, window = (4, 6), (2, 3)
    module, tokens = attention(window, parts=parts), torch.randn(2, PREFIX + 24, DIMS)
    ids = torch.arange(24).view(1, 24, 1)
    windows = partition(ids, grid, window)[..., 0]
    mask = torch.ones(PREFIX + 24, PREFIX + 24, dtype=torch.bool)
    mask[PREFIX:, PREFIX:] = False
    for cells in windows:
        mask[(PREFIX + cells)[:, None], PREFIX + cells] = True
    expected = explicit(module, tokens, grid, mask)
    assert torch.allclose(module(tokens, grid), expected, atol=1e-5)


@pytest.mark.parametrize('parts', PARTS)
def test_no_map_of_all_pairs_is_saved(parts):
    module, saved = attention(parts=parts), []
    num = 20 * 20
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    )
    with hooks:
        module(torch.randn(1, PREFIX + num, DIMS, requires_grad=True), (20, 20))
    assert max(saved) < num * num


@pytest.mark.parametrize('parts', PARTS)
def test_half_precision(parts):
    """Of the module itself. Under autocast: tests/test_registry.py."""
    module, tokens = attention(parts=parts), torch.randn(2, PREFIX + 12, DIMS)
    expected = module(tokens, GRID)
    for dtype, accepted in ((torch.float16, 0.005), (torch.bfloat16, 0.03)):
        half = copy.deepcopy(module).to(dtype)(tokens.to(dtype), GRID)
        error = (half - expected).abs().max()
        assert half.dtype == dtype and error < accepted * expected.abs().max()
