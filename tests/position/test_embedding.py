"""Position embeddings: shapes, known values, gradients, errors."""

import pytest
import torch
from backbone_variants import build_vit

from mmlape.checkpoints import convert
from mmlape.position import LearnedPosition, resize_table
from mmlape.registry import MODELS


@pytest.mark.parametrize('grid', [(1, 1), (7, 5), (14, 14), (3, 40)])
@pytest.mark.parametrize('num_prefix', [0, 1, 2])
def test_any_grid(grid, num_prefix):
    position = LearnedPosition(embed_dims=8, grid=(14, 14), num_prefix_tokens=num_prefix)
    assert position(grid).shape == (1, num_prefix + grid[0] * grid[1], 8)


def test_own_grid_is_the_table_itself():
    position = LearnedPosition(embed_dims=8, grid=(4, 6), num_prefix_tokens=1)
    assert position((4, 6)) is position.pos_embed
    assert position([4, 6]) is position.pos_embed


def test_prefix_rows_are_not_resized():
    position = LearnedPosition(embed_dims=8, grid=(4, 4), num_prefix_tokens=2)
    assert torch.equal(position((9, 3))[:, :2], position.pos_embed[:, :2])


def test_resize_keeps_raster_order():
    rows = torch.arange(4.0).view(4, 1).expand(4, 6)
    table = torch.stack([rows, torch.arange(6.0).expand(4, 6)], dim=-1).reshape(1, 24, 2)
    resized = resize_table(table, (4, 6), (8, 12)).view(8, 12, 2)
    assert (resized[..., 0].diff(dim=0) > -0.1).all() and resized[..., 0].std(dim=1).max() < 1e-5
    assert (resized[..., 1].diff(dim=1) > -0.1).all() and resized[..., 1].std(dim=0).max() < 1e-5


def test_resize_of_a_constant_is_constant():
    assert torch.allclose(resize_table(torch.ones(1, 6, 3), (2, 3), (5, 9)), torch.ones(1, 45, 3))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_resize_in_half_precision_is_float32_rounded_once(dtype):
    table = torch.randn(1, 16, 4).to(dtype)
    expected = resize_table(table.float(), (4, 4), (7, 7)).to(dtype)
    assert torch.equal(resize_table(table, (4, 4), (7, 7)), expected)


def test_gradient_reaches_every_row():
    position = LearnedPosition(embed_dims=4, grid=(3, 3), num_prefix_tokens=1)
    position((5, 4)).square().sum().backward()
    assert (position.pos_embed.grad.abs().sum(dim=-1) > 0).all()


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


def test_initial_values():
    values = LearnedPosition(embed_dims=64, grid=(20, 20)).pos_embed
    assert abs(values.std().item() - 0.02) < 1e-3 and abs(values.mean().item()) < 1e-3


@pytest.mark.parametrize(
    'options',
    [
        dict(embed_dims=0, grid=(2, 2)),
        dict(embed_dims=4, grid=(0, 2)),
        dict(embed_dims=4, grid=(2, 2), num_prefix_tokens=-1),
    ],
)
def test_bad_sizes(options):
    with pytest.raises(ValueError, match='must be'):
        LearnedPosition(**options)


@pytest.mark.parametrize('options', [dict(grid='14'), dict(grid=(1, 2, 3)), dict(grid=(1.5, 2))])
def test_bad_types(options):
    with pytest.raises(TypeError, match='grid'):
        LearnedPosition(embed_dims=4, **options)


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match='resise'):
        MODELS.build(
            dict(type='mmlape.LearnedPosition', embed_dims=4, grid=(2, 2), resise='bilinear')
        )


def test_state_dict_round_trip_and_compile():
    position = LearnedPosition(embed_dims=4, grid=(3, 3), num_prefix_tokens=1)
    other = LearnedPosition(embed_dims=4, grid=(3, 3), num_prefix_tokens=1)
    other.load_state_dict(position.state_dict())
    compiled = torch.compile(other, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled((4, 5)), position((4, 5)))
