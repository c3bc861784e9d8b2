"""How far attention looks, and where the class token does: known values, and the plain definitions."""

import backbone_variants as variants
import numpy as np
import pytest
import torch
from torch import nn

from mmlape.backbones import Stage
from mmlape.layers import (
    Attention,
    BigBirdAttention,
    DifferentialAttention,
    ShiftedWindowAttention,
    SpatialReductionAttention,
)
from mmlape.layout import Layout
from mmlape.norm import LN
from mmlape.research.analysis import attention as module
from mmlape.research.analysis import (
    attention_distances,
    class_attention,
    draw_class_attention,
    draw_distances,
    find_stages,
    patch_sides,
    token_attention,
)

IMAGE = torch.randn(1, 3, 33, 50, generator=torch.Generator().manual_seed(0))


def places(*sides):
    """Row and column of every cell, ``(H * W, 2)``."""
    return torch.cartesian_prod(*(torch.arange(float(side)) for side in sides))


def definition(weights, queries, keys):
    """B.1 word by word: mean over i of the sum over j of A_ij delta_ij, per head."""
    return (weights * (queries[:, None] - keys[None]).square().sum(-1).sqrt()).sum(-1).mean(-1)


class OneLayer(nn.Module):
    """A backbone of a single attention layer on given tokens, some of them without a place; others run ``before``."""

    def __init__(self, attention, grid, num_prefix=0, before=()):
        super().__init__()
        self.blocks = nn.ModuleList()
        for each in (*before, attention):
            layer = nn.Module()
            layer.norm1 = layer.norm2 = LN(12)
            layer.attn = each
            self.blocks.append(layer)
        self.grid, self.num_prefix = grid, num_prefix
        self.prefix = tuple(nn.Parameter(torch.zeros(1, 1, 12)) for _ in range(num_prefix))

    def stages(self):
        stem = nn.Identity()
        stem.stride = (9, 10)
        return [Stage('blocks', 'position', 12, stem, self.blocks, prefix=self.prefix)]

    def tokens(self):
        generator = torch.Generator().manual_seed(3)
        length = self.num_prefix + self.grid[0] * self.grid[1]
        return torch.randn(1, length, 12, generator=generator)

    def forward(self, image):
        for block in self.blocks:
            block.attn(self.tokens(), self.grid)


def measure(attention, grid, num_prefix=0):
    model = OneLayer(attention, grid, num_prefix).eval()
    (found,) = attention_distances(model, [torch.zeros(1, 3, 8, 8)], find_stages(model))
    return model, found


def constant(attention):
    """The same keys everywhere: attention is uniform."""
    for parameter in attention.parameters():
        nn.init.zeros_(parameter)
    return attention


def test_uniform_attention_on_a_known_grid():
    """2 x 2 cells: distances 0, 1, 1, sqrt 2, so their mean is (2 + sqrt 2) / 4."""
    _, found = measure(constant(Attention(12, 3)), (2, 2))
    assert np.allclose(found.mean, [[(2 + 2**0.5) / 4] * 3], atol=1e-6)
    assert np.allclose(found.uniform, (2 + 2**0.5) / 4, atol=1e-6)
    # a row of n cells: (n^2 - 1) / 3n
    _, found = measure(constant(Attention(12, 3)), (1, 5))
    assert np.allclose(found.mean, 24 / 15, atol=1e-6)


def test_identity_attention_has_distance_zero():
    grid = (3, 5)
    sharp = 1000 * torch.eye(15)[None, None]
    where = module.Places(places(*grid)[None], places(*grid)[None])
    assert module.mean_distance(module.Call(sharp, sharp), where).item() == 0
    to_the_next = sharp.roll(1, dims=2)[:, :, 1:]
    where = where._replace(queries=places(*grid)[None, 1:])
    # 12 steps of one cell, and 2 from the end of a row to the start of the next
    expected = (12 + 2 * (1 + 4**2) ** 0.5) / 14
    assert module.mean_distance(module.Call(to_the_next, sharp), where).item() == pytest.approx(
        expected
    )


def test_scores_are_those_of_the_operator():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 4, generator=generator)
    mask = torch.randn(2, 1, 5, 5, generator=generator)
    for options in (
        dict(),
        dict(scale=0.3),
        dict(attn_mask=mask),
        dict(attn_mask=(mask > 0) | torch.eye(5, dtype=torch.bool)),
    ):
        call = module.Call(query, key, value, **options)
        expected = nn.functional.scaled_dot_product_attention(query, key, value, **options)
        assert torch.allclose(call.scores().softmax(-1) @ value, expected, atol=1e-6)
        assert torch.allclose(call.rows(slice(2, 4)).scores(), call.scores()[..., 2:4, :])


def test_a_query_without_a_place_may_look_at_nothing():
    """One of EoMT's whose mask is empty: it attends to other queries alone, which have no place either."""
    where = nn.functional.pad(places(1, 3), (0, 0, 1, 0), value=float('nan'))[None]
    mask = torch.zeros(4, 4)
    mask[0, 1:] = -torch.inf
    call = module.Call(*torch.zeros(2, 1, 2, 4, 4), attn_mask=mask)
    # a row of 3 cells: (3^2 - 1) / (3 * 3)
    assert torch.allclose(
        module.mean_distance(call, module.Places(where, where)).float(), torch.tensor(8 / 9)
    )


@pytest.mark.parametrize('chunk', [module.CHUNK, 100, 1])
@pytest.mark.parametrize('num_prefix', [0, 2])
def test_our_attention_against_the_definition(num_prefix, chunk, monkeypatch):
    """Prefix tokens are taken out of the softmax: the weights of the others sum to one."""
    monkeypatch.setattr(module, 'CHUNK', chunk)
    attention, grid = Attention(12, 3), (3, 4)
    model, found = measure(attention, grid, num_prefix)
    query, key, _ = attention.split_heads(attention.qkv(model.tokens()), 3)
    scores = (query @ key.mT)[0] / 2
    weights = scores.softmax(dim=-1)[:, num_prefix:, num_prefix:]
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = definition(weights, places(*grid), places(*grid))
    assert np.allclose(found.mean[0], expected.detach(), atol=1e-5)


def test_windows_and_their_padding():
    """5 x 3 cells in windows of 2 x 2: padded keys have no place, windows do not see one another."""
    attention = constant(Attention(12, 3, window_size=2))
    whole, pair = 2 + 2**0.5, 2 * 0.5  # of the cells of a window together
    for num_prefix in (0, 1):
        _, found = measure(attention, (5, 3), num_prefix)
        assert np.allclose(found.mean, (2 * whole + 2 * pair + pair) / 15, atol=1e-6)


@pytest.mark.parametrize('grid', [(5, 7), (4, 3)])
@pytest.mark.parametrize('shift', [(1, 2), (3, 0), (0, 1)])
@pytest.mark.parametrize('alone', [False, True])
def test_cells_that_a_shift_brought_together_do_not_count(grid, shift, alone):
    """The layer's own mask, and equal weights without it, leave the means over the cells of moved windows."""
    window = (4, 3)
    attention = ShiftedWindowAttention(12, 3, window_size=window, shift=shift, shift_alone=alone)
    _, found = measure(constant(attention), grid)
    moved = torch.tensor(
        [each * (alone or side > own) for each, side, own in zip(shift, grid, window, strict=True)]
    )
    cells = places(*grid)
    windows = ((cells - moved) / torch.tensor(window)).floor()
    seen = (windows[:, None] == windows).all(-1).float()
    (expected,) = definition((seen / seen.sum(-1, keepdim=True))[None], cells, cells)
    assert np.allclose(found.uniform, expected, atol=1e-6)
    assert np.allclose(found.mean, expected, atol=1e-6)


@pytest.mark.parametrize('grid', [(4, 6), (5, 7)])
def test_spatial_reduction_measures_to_the_centres_of_the_blocks(grid):
    attention = SpatialReductionAttention(12, 3, sr_ratio=2)
    model, found = measure(attention, grid)
    tokens = model.tokens()
    query = attention.q(tokens).unflatten(-1, (3, -1)).transpose(1, 2)
    key = attention.kv(attention._reduce(tokens, Layout(grid))[0])[..., :12].unflatten(-1, (3, -1))
    weights = (query @ key.transpose(1, 2).mT / 2).softmax(dim=-1)[0]
    centres = []
    for top in range(0, grid[0], 2):
        for left in range(0, grid[1], 2):
            block = [
                (y, x)
                for y in range(top, min(top + 2, grid[0]))
                for x in range(left, min(left + 2, grid[1]))
            ]
            centres.append(torch.tensor(block).float().mean(dim=0))
    expected = definition(weights, places(*grid), torch.stack(centres))
    assert np.allclose(found.mean[0], expected.detach(), atol=1e-5)


def test_linear_attention_measures_to_what_is_averaged():
    # cell i holds the places from floor(10 i / 7) to ceil(10 (i + 1) / 7)
    averaged = torch.tensor([0.5, 1.5, 3, 4.5, 6, 7.5, 8.5])
    _, found = measure(constant(SpatialReductionAttention(12, 3, linear=True)), (1, 10))
    keys = torch.stack([torch.zeros(7), averaged], dim=1).repeat(7, 1)
    expected = definition(torch.full((10, 49), 1 / 49), places(1, 10), keys)
    assert np.allclose(found.mean, expected, atol=1e-6)


def test_what_position_does_to_scores_counts():
    """With a large bias on the offset zero every token looks at itself."""
    model = variants.build_vit(attention_position=dict(type='mmlape.RelativePositionBias')).eval()
    stages = find_stages(model)
    (plain,) = attention_distances(model, [IMAGE], stages)
    with torch.no_grad():
        for block in model.blocks:
            table = block.attn.position.relative_position_bias_table
            table[len(table) // 2] = 1000
    (near,) = attention_distances(model, [IMAGE], stages)
    assert plain.mean.min() > 0.5 and near.mean.max() < 1e-3


@pytest.mark.parametrize('window', [None, 2])
@pytest.mark.parametrize('token', [0, 2])
def test_weights_of_prefix_tokens_against_the_definition(token, window):
    """Prefix tokens attend to all, with windows too."""
    model = OneLayer(Attention(12, 3, window_size=window), (4, 5), 3).eval()
    found = class_attention(model, IMAGE, token=token)
    attention = model.blocks[0].attn
    query, key, _ = attention.split_heads(attention.qkv(model.tokens()), 3)
    expected = (query[:, :, token : token + 1] @ key.mT / 2).softmax(-1)[0, :, 0].detach()
    assert np.allclose(found.prefix[0], expected[:, :3], atol=1e-6)
    assert np.allclose(found.maps[0], expected[:, 3:].view(3, 4, 5), atol=1e-6)
    assert np.allclose(found.image, IMAGE[0].mean(0))
    assert (found.stage, found.layers.tolist()) == ('blocks', [0])


@pytest.mark.parametrize(
    ('pixel', 'cell'), [((0, 0), 0), ((17.9, 49.9), 9), ((26, 10), 11), ((99, 99), 19)]
)
def test_weights_of_the_token_of_a_pixel_against_the_definition(pixel, cell):
    """The image of 33 x 50 pixels has 4 x 5 patches of 9 x 10, of which the last row reaches beyond it; further out it
    is the last one."""
    attention = Attention(12, 3)
    model = OneLayer(attention, (4, 5), 2, before=[Attention(12, 3)]).eval()
    query, key, _ = attention.split_heads(attention.qkv(model.tokens()), 3)
    weights = (query[0, :, 2 + cell : 3 + cell] @ key[0].mT / 2).softmax(-1)[:, 0].mean(0).detach()
    found = token_attention(model, IMAGE, pixel)
    assert np.allclose(found, weights[2:].view(4, 5), atol=1e-6)


def test_sides_of_patches():
    for model in (
        variants.build_vit(patch_size=(8, 16)),
        variants.build_eomt(dict(patch_size=(8, 16))),
    ):
        assert patch_sides(model, find_stages(model)[0]) == (8, 16)
    pyramid = variants.build_pvt()
    assert [patch_sides(pyramid, stage) for stage in pyramid.stages()] == [
        (n, n) for n in (4, 8, 16, 32)
    ]


def test_tokens_that_do_not_look_at_all_patches_are_refused():
    for attention, num_prefix in (
        (Attention(12, 3, window_size=2), 0),
        (
            Attention(12, 3, window_size=(4, 5)),
            1,
        ),  # a window of all, where prefix tokens attend by themselves
        (SpatialReductionAttention(12, 3, sr_ratio=2), 0),
    ):
        with pytest.raises(ValueError, match="tokens of 'blocks' do not look at all patches"):
            token_attention(OneLayer(attention, (4, 5), num_prefix).eval(), IMAGE, (0, 0))


def test_the_class_token_stands_behind_the_queries_of_eomt():
    model = variants.build_eomt(num_blocks=2).eval()
    model.set_mask_probs([0, 0])
    seen = []

    def keep(_, layout, call):
        seen.append((layout, call.scores()[0].softmax(-1)))

    attentions = [block.attn for block in find_stages(model)[0].blocks]
    image = torch.randn(1, 3, 48, 64)
    module.record_attention(model, image, attentions, keep)
    found = class_attention(model, image, layers=[0, 3])
    queries = seen[3][0].num_prefix - seen[0][0].num_prefix
    assert queries > 0
    for shown, (layout, weights), row in ((0, seen[0], 0), (1, seen[3], queries)):
        expected = weights[:, row, layout.num_prefix :].unflatten(-1, layout.grid)
        assert np.allclose(found.maps[shown], expected, atol=1e-6)
        assert np.allclose(found.prefix[shown], weights[:, row, row : layout.num_prefix], atol=1e-6)


def outputs(model):
    with torch.no_grad():
        out = model(IMAGE)[-1]
    return out if torch.is_tensor(out) else out[0]


# Joinings do not change how attention is read.
NAMES = [
    name
    for name in variants.VARIANTS
    if name.partition('-')[2] not in variants.JOININGS.keys() - {'lape'}
]


@pytest.mark.parametrize('name', NAMES)
def test_every_variant_is_measured_or_refused_and_left_as_it_was(name):
    model = variants.randomise(variants.VARIANTS[name]()).eval()
    stages, before = find_stages(model), outputs(model)
    if name.partition('-')[2] in ('bigbird', 'lsh'):  # which choose their keys
        for ask in (
            lambda: attention_distances(model, [IMAGE], stages),
            lambda: class_attention(model, IMAGE),
        ):
            with pytest.raises(ValueError, match=r'has no class token|defined for \['):
                ask()
        return
    found = attention_distances(model, [IMAGE, IMAGE[:, :, :20]], stages)
    for stage, distances in zip(stages, found, strict=True):
        heads = stage.blocks[0].attn.num_heads
        assert distances.distances.shape == (2, len(stage.blocks), heads)
        assert np.isfinite(distances.distances).all() and (distances.distances >= 0).all()
        farthest = np.hypot(*(distances.grids.max(axis=0) - 1))
        assert distances.distances.max() <= farthest
        assert np.allclose(distances.mean, distances.distances.mean(axis=0))
    if not any(stage.prefix for stage in stages):
        with pytest.raises(ValueError, match='has no class token'):
            class_attention(model, IMAGE)
        assert torch.equal(outputs(model), before)
        return
    stage = [stage for stage in stages if stage.prefix][-1]
    layers = list(range(stage.prefix_after, len(stage.blocks)))
    found = class_attention(model, IMAGE, layers=layers)
    assert torch.equal(outputs(model), before)
    heads = stage.blocks[-1].attn.num_heads
    assert found.maps.shape[:2] == (len(layers), heads) == found.prefix.shape[:2]
    assert np.allclose(found.maps.sum((2, 3)) + found.prefix.sum(2), 1, atol=1e-5)
    (last,) = class_attention(model, IMAGE).maps
    assert np.array_equal(last, found.maps[-1])


def test_a_row_for_each_layer_of_each_image():
    model = variants.build_vit().eval()
    distances = attention_distances(model, [IMAGE], find_stages(model))
    assert draw_distances(distances).axes[0].get_title().startswith('blocks')
    found = [class_attention(model, image, layers=[1, 3]) for image in (IMAGE, IMAGE[..., :20])]
    heads = model.blocks[0].attn.num_heads
    *panels, scale = draw_class_attention(found).axes
    titles = [place.get_title() for place in panels]
    row = [f'head {head}' for head in range(heads)] + ['mean of heads']
    assert titles == ['layer 1', *row, 'layer 3', *row] * 2
    # of the mean over heads, over equal attention: the sum over patches is their share of all tokens
    shown = panels[heads + 1].images[0].get_array()
    assert shown.sum() == pytest.approx(found[0].maps[0].mean(0).sum() * (shown.size + 1), rel=1e-5)
    assert scale.get_ylabel() == 'weight / equal weight'


def test_mistakes():
    model = variants.build_vit().eval()
    stages = find_stages(model)
    with pytest.raises(ValueError, match=r"layers of 'blocks' must be 0 to 3, got 4"):
        attention_distances(model, [IMAGE], stages, [4])
    with pytest.raises(ValueError, match='at least one image'):
        attention_distances(model, [], stages)
    for attention in (
        nn.MultiheadAttention(12, 3),
        BigBirdAttention(12, 3),
        DifferentialAttention(12, 3),
    ):
        other = OneLayer(attention, (2, 2))
        with pytest.raises(
            ValueError, match=r"'Attention', .*'WideValueAttention'\], got (Mult|Big|Diff)"
        ):
            attention_distances(other, [IMAGE], find_stages(other))
    for options, text in (
        (dict(layers=[4]), r"layers of 'blocks' must be 0 to 3, got 4"),
        (dict(token=1), 'token must be'),
        (dict(part='block1'), r"part must be one of .*, got 'block1'"),
    ):
        with pytest.raises(ValueError, match=text):
            class_attention(model, IMAGE, **options)
    late = variants.build_vit(prefix=dict(cls_token=True, after=2)).eval()
    with pytest.raises(ValueError, match=r"layers must be 2 to 3, where .* joined 'blocks', got 1"):
        class_attention(late, IMAGE, layers=[1, 3])
    with pytest.raises(ValueError, match='at least one'):
        draw_class_attention([])
