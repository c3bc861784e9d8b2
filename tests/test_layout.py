"""The layout of tokens."""

import pytest
import torch

from mmlape.layout import Layout, maps_of


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('num_prefix', [0, 1])
def test_maps_have_channels_last(batch, num_prefix):
    """So that a convolution leaves them as they are, of a single image too, whose batch can have any stride."""
    tokens = torch.randn(batch, num_prefix + 6, 4)
    maps = Layout((2, 3), num_prefix).to_maps(tokens)
    assert torch.equal(maps, maps_of(tokens[:, num_prefix:], (2, 3)))
    assert torch.equal(maps[:, :, 1, 2], tokens[:, -1])
    assert maps.data_ptr() == tokens[:, num_prefix:].data_ptr()
    mixed = torch.nn.Conv2d(4, 4, 3, padding=1, groups=4)(maps)
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert mixed.stride(1) == 1


def test_of_a_pair_none_and_a_layout():
    tokens = torch.randn(2, 9, 4)
    assert Layout.of(tokens, (2, 3)) == Layout((2, 3), 3)
    assert Layout.of(tokens, [3, 3]) == Layout((3, 3))
    assert Layout.of(tokens, None) == Layout((3, 3))
    layout = Layout((2, 4), 1, torch.ones(2, 8, dtype=torch.bool))
    assert Layout.of(tokens, layout) is layout


MASK = torch.ones(2, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ('shape', 'where', 'match'),
    [
        *((9, grid, r'grid must be \(height, width\).* 9 tokens') for grid in ((2, 5), (0, 4), (8,), (2, 2, 2))),
        *((count, None, rf'needs grid=.*{count} tokens are not a square') for count in (0, 8, 10)),
        (6, Layout((2, 3), 1), 'has 7 tokens, got 6'),
        (6, Layout((2, 3), mask=MASK), 'mask of 2 images, got tokens of 1'),
    ],
)  # fmt: skip
def test_of_tokens_that_do_not_fit(shape, where, match):
    with pytest.raises(ValueError, match=match):
        Layout.of(torch.randn(1, shape, 4), where)


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        (dict(grid=(0, 3)), 'grid must be'),
        (dict(grid=(2, 3, 1)), 'grid must be'),
        (dict(num_prefix=-1), 'num_prefix must be at least 0, got -1'),
        (dict(mask=torch.ones(2, 6)), 'mask must be boolean.*float32'),
        (dict(mask=torch.ones(2, 5, dtype=torch.bool)), r'mask must be .*\(batch, 6\).*\(2, 5\)'),
        (dict(mask=torch.ones(6, dtype=torch.bool)), 'mask must be'),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(ValueError, match=match):
        Layout(**dict(dict(grid=(2, 3)), **options))
