"""What knows where a token is, beside the same by loops over (y, x): grids that are not square, with odd sides that no
window, patch or ratio divides."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_adapter, build_swin
from torch import nn

from mmlape.layers import Attention, Injector
from mmlape.layout import Layout
from mmlape.position import RelativePositionBias, SharedRelativePositionBias


def randomised(module, std=0.5):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module.eval().double()


def cells(height, width):
    """(y, x) in raster order."""
    return list(itertools.product(range(height), range(width)))


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def between(table, y, x):
    """Linear interpolation of ``(rows, columns, heads)``, clamped to it."""
    y, x = (min(max(at, 0), side - 1) for at, side in zip((y, x), table.shape, strict=False))
    top, left = math.floor(y), math.floor(x)
    down, right = min(top + 1, table.shape[0] - 1), min(left + 1, table.shape[1] - 1)
    above = torch.lerp(table[top, left], table[top, right], x - left)
    below = torch.lerp(table[down, left], table[down, right], x - left)
    return torch.lerp(above, below, y - top)


def centre(index, count, others):
    """Where the cell ``index`` of ``count`` lies on an axis of ``others`` cells, in their cells."""
    return (index + 0.5) * others / count - 0.5


@pytest.mark.parametrize('kind', [RelativePositionBias, SharedRelativePositionBias])
@pytest.mark.parametrize('keys_on', [(3, 4), (2, 2), (1, 3)])
@pytest.mark.parametrize('options', [{}, dict(mirrored=True), dict(prefix_scores=True)], ids=str)
def test_relative_bias(kind, options, keys_on):
    position = randomised(kind(8, 2, (3, 4), **options))
    prefix = 2 if 'prefix_scores' in options else 0
    query, key = Layout((3, 4), prefix), Layout(keys_on, prefix)
    table = position.relative_position_bias_table
    if 'mirrored' in options:
        near = [table[abs(y - 2) * 4 + abs(x - 3)] for y, x in cells(5, 7)]
        table = torch.stack(near)
    table = table.view(5, 7, 2)
    found = position(query, key).bias(query, key)[0]
    for (i, (y, x)), (j, (v, u)) in itertools.product(
        enumerate(cells(3, 4)), enumerate(cells(*keys_on))
    ):
        offset = y - centre(v, keys_on[0], 3), x - centre(u, keys_on[1], 4)
        expected = between(table, offset[0] + 2, offset[1] + 3)
        torch.testing.assert_close(found[:, prefix + i, prefix + j], expected, atol=1e-5, rtol=1e-5)
    if prefix:
        reading, read, among = position.prefix_table
        assert (found[:, :2, 2:] == reading[:, None, None]).all()
        assert (found[:, 2:, :2] == read[:, None, None]).all()
        assert (found[:, :2, :2] == among[:, None, None]).all()


def attended(layer, query, key, value, seen, bias=None):
    """``(B, N, C)`` each to what each query reads of the keys that it sees, ``seen`` ``(N, M)``."""
    heads = [
        part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in (query, key, value)
    ]
    scores = heads[0] @ heads[1].transpose(-1, -2) / heads[2].shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    shares = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
    return layer.proj((shares @ heads[2]).transpose(1, 2).flatten(2))


@pytest.mark.parametrize('prefix', [0, 2])
def test_windows(prefix):
    """Padding after the projection has keys of zero; a prefix token is in every window."""
    layer, grid = randomised(Attention(8, 2, window_size=(2, 3))), (5, 7)
    tokens = random(2, prefix + 35, 8)
    qkv = layer.qkv(tokens)
    padded = cells(6, 9)  # in whole windows
    rows = [prefix + y * 7 + x if y < 5 and x < 7 else None for y, x in padded]
    nothing = torch.zeros_like(qkv[:, :1])
    all_of = [qkv[:, :prefix], *(nothing if row is None else qkv[:, row : row + 1] for row in rows)]
    query, key, value = torch.cat(all_of, dim=1).chunk(3, dim=-1)
    windows = torch.tensor([-1] * prefix + [y // 2 * 3 + x // 3 for y, x in padded])
    there = torch.tensor([True] * prefix + [row is not None for row in rows])
    seen = (windows[:, None] == windows) | (windows == -1)
    seen |= (windows[:, None] == -1) & there  # prefix tokens read all that is there
    expected = attended(layer, query, key, value, seen)[:, there]
    torch.testing.assert_close(layer(tokens, Layout(grid, prefix)), expected)


@pytest.mark.parametrize('patch', [12, 14, 16])
def test_reference_points_of_the_adapter_are_pixels(patch, monkeypatch):
    """Both streams mean the same pixel, where patches do not divide 32 and the two padded images differ."""
    model = build_adapter(dict(patch_size=patch)).eval()
    plans = []
    for interaction in model.interactions:
        for module in (interaction.injector, *interaction.extractors()):
            module.register_forward_pre_hook(
                lambda module, given: plans.append((type(module), given[2]))
            )
    height, width = 40, 75
    model(torch.randn(1, 3, height, width))
    pyramid = [-(-side // 32) * 32 for side in (height, width)]
    grid = [-(-side // patch) for side in pyramid]
    inside = [side * patch for side in grid]
    for kind, plan in plans:
        into_tokens = kind is Injector
        steps = [patch] if into_tokens else [8, 16, 32]
        extent = inside if into_tokens else pyramid
        pixels = [
            ((x + 0.5) * step, (y + 0.5) * step)
            for step in steps
            for y, x in cells(extent[0] // step, extent[1] // step)
        ]
        across = pyramid if into_tokens else inside
        expected = torch.tensor(pixels) / torch.tensor(across[::-1])
        torch.testing.assert_close(plan.reference_points.view(-1, 2), expected)
        sampled = [[side // s for side in pyramid] for s in (8, 16, 32)] if into_tokens else [grid]
        assert [list(shape) for shape in plan.shapes] == sampled


@pytest.mark.parametrize('joining', ['LaPE', 'LaPE layers', 'LaPE sharing', 'SharedJoining'])
def test_position_goes_on_from_stage_to_stage(joining):
    """The last norm of a stage is handed over, merged as tokens are, on maps with odd sides."""
    options = {'LaPE layers': dict(layers=1), 'LaPE sharing': dict(progressive=False)}.get(
        joining, {}
    )
    model = build_swin(
        position=dict(type='mmlape.LearnedPosition'),
        joining=dict(options, type=f'mmlape.{joining.split()[0]}'),
    )
    model, found, embedded = randomised(model), [], []
    for stage in model.stages():
        stage.embed.register_forward_hook(lambda *call: embedded.append(call[2][0]))
        for block in stage.blocks:
            block.register_forward_pre_hook(lambda _, given: found.append((given[0], given[2])))
    image = random(1, 3, 72, 44)  # 18 x 11, 9 x 6, 5 x 3, 3 x 2
    model(image)
    position = model.position1.embedding((18, 11))
    grid, index = (18, 11), 0
    for number, stage in enumerate(model.stages()):
        if number:
            maps = position.transpose(1, 2).unflatten(2, grid)
            position, layout = stage.embed(maps)
            grid = layout.grid
        for layer in range(len(stage.blocks)):
            tokens, given = found[index]
            index += 1
            if joining == 'SharedJoining':
                if layer == 0:  # tokens are embedded first, then the position that comes with them
                    torch.testing.assert_close(tokens, embedded[max(0, 2 * number - 1)] + position)
                assert given is None
                continue
            if joining == 'LaPE layers' and layer:
                assert given is None
                continue
            norm = stage.position.joining.norms[layer]
            normed = F.layer_norm(
                position, position.shape[-1:], norm.weight, norm.bias, 1e-5
            )  # eps as in the norms of Swin
            torch.testing.assert_close(given, normed)
            position = position if joining == 'LaPE sharing' else normed
    assert index == sum(len(stage.blocks) for stage in model.stages())
