"""Attention does not know the order of tokens: position tells a network where a patch is, or a norm that has one."""

import pytest
import torch
from backbone_variants import build_vit
from registered import component, registered

from mmlape.norm import TokenNorm
from mmlape.position import AttentionPosition, Joining, PositionEmbedding
from mmlape.research.analysis import shuffle_patches

GRID, PATCH = (3, 4), (8, 8)
NO_POSITION = component('NoPosition')
# Carried from the stage before, in Swin; a norm with position; and no position.
OTHERS = {'MergedPosition', 'DTN', 'NoPosition'}


def each(kind, *options):
    """All registered parts of a kind, and further ones with options."""
    names = [name for name, made in registered().items() if issubclass(made, kind)]
    return [*(component(name) for name in sorted(names) if name not in OTHERS), *options]


JOININGS = each(
    Joining,
    component('LaPE', progressive=False),
    component('LaPEWarmStart', construction='gate'),
)
EMBEDDINGS = each(
    PositionEmbedding,
    component('SinusoidalPosition', axes=2),
    *(component('GaborPosition', variant=variant) for variant in ('G', 'E')),
)
INSIDE = each(
    AttentionPosition,
    component('RelativePositionBias', layer_norm=True),
    component('RelativePositionBias', mirrored=True),
    *(component('GaborAttention', parts=parts) for parts in ('2,3', '2,3,4', None)),
)
NORMS = each(TokenNorm, component('SwitchableNorm', use_bn=True))
# Neighbours are mixed without any position.
NEIGHBOURS = [dict(window_size=2), dict(mlp=component('LocallyEnhancedMlp'))]


def of(config):
    return ' '.join(str(value).removeprefix('mmlape.') for value in reversed(config.values()))


def moved(model) -> tuple[torch.Tensor, torch.Tensor]:
    """How far tokens of patches, and the class token, depend on the order of patches, relative to their size.

    Parameters are moved off their initial values, many of which are zero. In double precision.
    """
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
    model = model.double().eval()
    image = torch.randn(2, 3, GRID[0] * PATCH[0], GRID[1] * PATCH[1], generator=draw).double()
    order = torch.randperm(GRID[0] * GRID[1], generator=draw)
    with torch.no_grad():
        ((before,), (after,)) = model(image), model(shuffle_patches(image, PATCH, order))
    size = before.abs().mean()
    patches = before[:, 1:][:, order] - after[:, 1:]
    return patches.abs().max() / size, (before[:, 0] - after[:, 0]).abs().max() / size


def vit(**options):
    small = dict(arch=dict(embed_dims=12, depth=2, num_heads=3, mlp_ratio=2), img_size=24)
    return build_vit(**small, **{'patch_size': PATCH, 'out_type': 'raw', **options})


def knows_the_order(model) -> bool:
    patches, token = moved(model)
    if max(patches, token) < 1e-9:
        return False
    assert min(patches, token) > 1e-4, 'neither one nor the other'
    return True


WITHOUT = [
    *(dict(position=NO_POSITION, joining=joining) for joining in JOININGS),
    *(dict(position=NO_POSITION, norm_cfg=norm) for norm in NORMS),
]
# DTN has position in its maps (ICLR 2022, eq. 6).
WITH = [
    *(dict(position=position) for position in EMBEDDINGS),
    *(dict(joining=joining) for joining in JOININGS),
    *(dict(position=NO_POSITION, attention_position=inside) for inside in INSIDE),
    dict(position=NO_POSITION, norm_cfg=component('DTN')),
    *(dict(position=NO_POSITION, **options) for options in NEIGHBOURS),
]


@pytest.mark.parametrize('options', WITHOUT, ids=of)
def test_without_position_patches_may_change_places(options):
    """Whatever joins it: tokens change places with their patches, and the class token is the same."""
    assert not knows_the_order(vit(**options))


@pytest.mark.parametrize('options', WITH, ids=of)
def test_any_position_tells_the_order(options):
    assert knows_the_order(vit(**options))
