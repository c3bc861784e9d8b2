"""How position tables are resized: by the same numbers as PyTorch's interpolation, cut off where cells stay square."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_vit

from mmlape.checkpoints import convert
from mmlape.position import FactorizedPosition, LearnedPosition, resize_table

OPTIONS = {
    'bicubic': dict(mode='bicubic'),
    'bilinear': dict(mode='bilinear'),
    'bicubic_antialias': dict(mode='bicubic', antialias=True),
    'bilinear_antialias': dict(mode='bilinear', antialias=True),
    'bicubic_antialias_square': dict(mode='bicubic', antialias=True),
    'bilinear_square': dict(mode='bilinear'),
    'bilinear_corners_square': dict(mode='bilinear', align_corners=True),
}


@pytest.mark.parametrize('mode', OPTIONS)
def test_is_pytorchs(mode):
    table = torch.randn(1, 6 * 8, 3)
    maps = table.unflatten(1, (6, 8)).permute(0, 3, 1, 2)
    for target in ((4, 9), (11, 3), (5, 7)):
        size = (max(target),) * 2 if mode.endswith('square') else target
        expected = F.interpolate(maps, size, **OPTIONS[mode])[:, :, : target[0], : target[1]]
        found = resize_table(table, (6, 8), target, mode)
        torch.testing.assert_close(found, expected.flatten(2).transpose(1, 2), atol=1e-5, rtol=0)
        assert resize_table(table.half(), (6, 8), target, mode).dtype == torch.float16


def test_rows_and_columns():
    """On its own grid a sum of two rows; on another both are resized by themselves, or for the longer side."""
    position = FactorizedPosition(8, (4, 6), num_prefix_tokens=2, num_tables=2)
    found = position((4, 6))
    assert found.shape == (2, 2 + 24, 8) and not found[:, :2].any()
    cells = found[:, 2:].unflatten(1, (4, 6))
    torch.testing.assert_close(cells[:, 3, 1], position.rows[:, 3] + position.columns[:, 1])
    found.sum().backward()
    assert (position.rows.grad == 6).all() and (position.columns.grad == 4).all()
    for square in (False, True):
        position.square = square
        cells = position((3, 9))[:, 2:].unflatten(1, (3, 9))
        tall, wide = (
            F.interpolate(table.transpose(1, 2), size, mode='linear').transpose(1, 2)
            for table, size in ((position.rows, 9 if square else 3), (position.columns, 9))
        )
        torch.testing.assert_close(cells, tall[:, :3, None] + wide[:, None])
    with pytest.raises(ValueError, match='std must be finite and at least 0'):
        FactorizedPosition(8, (4, 4), std=-1)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded_once(dtype):
    table = torch.randn(1, 16, 4).to(dtype)
    expected = resize_table(table.float(), (4, 4), (7, 7)).to(dtype)
    assert torch.equal(resize_table(table, (4, 4), (7, 7)), expected)


def test_own_grid_is_the_table_itself():
    position = LearnedPosition(embed_dims=8, grid=(4, 6), num_prefix_tokens=1)
    assert position((4, 6)) is position.pos_embed
    assert position([4, 6]) is position.pos_embed


@pytest.mark.parametrize('grid', [(3, 3), (4, 2)])
def test_no_rows_for_prefix_tokens(grid):
    """Theirs are zero, the others those of a table without prefix."""
    position = LearnedPosition(embed_dims=4, grid=(3, 3), num_prefix_tokens=2, prefix_rows=False)
    plain = LearnedPosition(embed_dims=4, grid=(3, 3))
    plain.load_state_dict(position.state_dict())
    assert position.pos_embed.shape == (1, 9, 4)
    prefix, cells = position(grid).split([2, grid[0] * grid[1]], dim=1)
    assert prefix.eq(0).all() and torch.equal(cells, plain(grid))


@pytest.mark.parametrize('side', [3, 4])
def test_tables_fit_a_model_without_prefix_rows(side):
    """With a class token's row or without one, from another grid or from the same."""
    position = dict(type='mmlape.LearnedPosition', prefix_rows=False)
    model = build_vit(position=position, img_size=64)
    source = build_vit(img_size=16 * side)
    state = source.state_dict()
    for table in (state['pos_embed'], state['pos_embed'][:, 1:]):
        converted = convert({**state, 'pos_embed': table}, 'deit', model)
        cells = resize_table(state['pos_embed'][:, 1:], (side, side), (4, 4))
        assert torch.equal(converted['pos_embed'], cells)
