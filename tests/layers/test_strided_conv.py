"""Strided convolutions of narrow maps in bfloat16: what PyTorch leaves unwritten."""

import pytest
import torch
from torch import nn

from mmlape.layers.strided_conv import StridedConv2d


@pytest.mark.parametrize(
    ('kernel', 'stride', 'padding'), [(8, 8, 0), (3, 2, 1), (7, 4, 3), (3, 1, 1)]
)
@pytest.mark.parametrize('width', [1, 2, 4, 8])
@pytest.mark.parametrize('by_autocast', [True, False])
def test_narrow_maps(kernel, stride, padding, width, by_autocast):
    if width + 2 * padding < kernel:
        width = kernel
    torch.manual_seed(0)
    conv = StridedConv2d(3, 16, kernel, stride=stride, padding=padding)
    maps = torch.randn(2, 3, 40, width)
    expected = nn.Conv2d.forward(conv, maps)
    for _ in range(3):  # what memory held is another thing each time
        if by_autocast:
            with torch.autocast('cpu', dtype=torch.bfloat16):
                found = conv(maps)
        else:
            found = conv.bfloat16()(maps.bfloat16())
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
