"""Images of any size: every pixel is seen, a single cell trains, and maps are cropped."""

import pytest
import torch
from backbone_variants import (
    build_adapter,
    build_ceit,
    build_compact,
    build_levit,
    build_light_adapter,
    build_pvt,
    build_swin,
    build_t2t,
    build_vit,
    randomise,
)

from mmlape.registry import MODELS

TRANSFORMER = dict(type='mmlape.TransformerTokens')
NETWORKS = {
    'vit': build_vit,
    'vit-windows': lambda: build_vit(window_size=3),
    'adapter': build_adapter,
    'light-adapter': build_light_adapter,
    'ceit': build_ceit,
    'compact': build_compact,
    'levit': build_levit,
    'pvt': build_pvt,
    'pvtv2': lambda: build_pvt('V2'),
    'swin': build_swin,
    't2t-performer': build_t2t,
    't2t-transformer': lambda: build_t2t(tokens=TRANSFORMER),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_every_pixel_is_seen(name):
    """Published code leaves the last rows and columns out where a stride does not divide the size."""
    model = randomise(NETWORKS[name]())
    strides = {'adapter': (4, 8, 16, 32), 'levit': (16, 32, 64), 'compact': (4,)}
    usual = (4, 8, 16, 32) if name in ('light-adapter', 'pvt', 'pvtv2', 'swin') else (16,)
    for size in ((1, 1), (37, 45), (15, 65)):
        image = torch.randn(1, 3, *size, requires_grad=True)
        for stride, each in zip(strides.get(name, usual), model(image), strict=True):
            assert tuple(each.shape[2:]) == tuple(-(-side // stride) for side in size)
            (grad,) = torch.autograd.grad(each.square().sum(), image, retain_graph=True)
            assert grad.abs().sum(dim=1).ne(0).all(), (size, stride)


@pytest.mark.parametrize('build', [build_adapter, build_light_adapter, build_ceit])
def test_trains_on_a_single_cell(build):
    """Its batch norms cannot: one value has no variance."""
    model = build().train()
    maps = model(torch.randn(1, 3, 9, 16))
    sum(each.square().sum() for each in maps).backward()
    assert all(each.isfinite().all() for each in (*maps, *model.buffers()))


@pytest.mark.parametrize('size', [(1, 1), (2, 9), (33, 17), (40, 64)])
def test_several_convolutions_and_strides(size):
    options = dict(embed_dims=8, kernel_size=(7, 3), stride=(2, 1), num_convs=2, hidden_dims=4)
    stem = MODELS.build(dict(type='mmlape.ConvPoolStem', **options))
    tokens, layout = stem(torch.randn(1, 3, *size))
    assert stem.stride == (16, 4) and stem.grid_of(size) == layout.grid
    assert tokens.shape == (1, layout.num_cells, 8)
