"""ViT-Adapter around ViTs of any patch size: how much is padded, and that maps lie where the image's pixels are."""

import pytest
import torch
from backbone_variants import build_adapter
from torch import nn

from mmlape.backbones import adapter
from mmlape.layers.deformable import sampling_plan

STRIDES = (4, 8, 16, 32)


@pytest.mark.parametrize('patch', [14, 16])
def test_pads_by_less_than_a_patch_and_a_coarsest_cell(patch):
    """Neither the pyramid nor the ViT sees more than that."""
    model = build_adapter(dict(patch_size=patch), interaction_indexes=[[0, 3]]).eval()
    seen = {}
    for name, module in (('spm', model.spm), ('vit', model.vit.patch_embed.proj)):
        module.register_forward_pre_hook(
            lambda _, arguments, name=name: seen.update({name: arguments[0].shape[-2:]})
        )
    for size in ((200, 304), (449, 70), (1, 1)):
        with torch.no_grad():
            outputs = model(torch.zeros(1, 3, *size))
        assert seen.keys() == {'spm', 'vit'}
        for sides in seen.values():
            assert all(0 <= side - own < patch + 32 for side, own in zip(sides, size, strict=True))
        assert [tuple(out.shape[2:]) for out in outputs] == [
            tuple(-(-side // stride) for side in size) for stride in STRIDES
        ]


def coordinates(height, width, cell_height, cell_width):
    """(y, x) in pixels of the centres of cells, ``(H, W, 2)``."""
    ys = (torch.arange(height) + 0.5) * cell_height
    xs = (torch.arange(width) + 0.5) * cell_width
    return torch.stack(torch.meshgrid(ys, xs, indexing='ij'), dim=-1)


def adapter_that_adds_coordinates(patch):
    """All parameters but the ViT's are zero, and each of its layers returns the pixel coordinates of every token."""
    model = build_adapter(dict(patch_size=patch)).eval()
    norms = [getattr(model, f'norm{number}') for number in (1, 2, 3, 4)]
    for part in (model.spm, model.interactions, model.up):
        for parameter in part.parameters():
            nn.init.zeros_(parameter)
    nn.init.zeros_(model.level_embed)

    def coordinates_of_tokens(_block, arguments, out):
        layout = arguments[1]
        cells = coordinates(*layout.grid, *model.vit.patch_embed.patch_size)
        return torch.cat([cells.flatten(0, 1)[None], torch.zeros_like(out)[..., 2:]], dim=-1)

    for block in model.vit.blocks:
        block.register_forward_hook(coordinates_of_tokens)
    for norm in norms:
        assert isinstance(norm, nn.BatchNorm2d)
        norm.eps = 1e-12
    return model


@pytest.mark.parametrize('patch', [8, 14, 16, 20, (14, 10)], ids=str)
def test_what_a_vit_adds_lies_where_it_was_in_the_image(patch):
    model = adapter_that_adds_coordinates(patch)
    sides = (patch, patch) if isinstance(patch, int) else patch
    for size, model.vit_feature in (((84, 140), 'last'), ((100, 61), 'per_stage')):
        with torch.no_grad():
            outputs = model(torch.zeros(1, 3, *size))
        for stride, out in zip(STRIDES, outputs, strict=True):
            expected = coordinates(*out.shape[2:], stride, stride)
            # Beyond the centres of the first and last patch there is nothing to interpolate.
            inner = [
                (expected[..., axis] >= side / 2) & (expected[..., axis] <= size[axis] - side / 2)
                for axis, side in enumerate(sides)
            ]
            off = (out[0, :2].permute(1, 2, 0) - expected).abs()[inner[0] & inner[1]]
            assert len(off) and off.max() < 0.5, (size, stride)


@pytest.mark.parametrize('patch', [8, 14, 16, 20, (14, 10)], ids=str)
def test_features_are_exchanged_where_they_lie_in_the_image(patch, monkeypatch):
    """A ViT whose patches do not divide 32 sees more padding than the pyramid."""
    plans = []
    monkeypatch.setattr(
        adapter, 'sampling_plan', lambda *given: plans.append(sampling_plan(*given)) or plans[-1]
    )
    with torch.no_grad():
        build_adapter(dict(patch_size=patch)).eval()(torch.zeros(1, 3, 100, 61))
    into_tokens, into_pyramid = plans
    pyramid, (grid,) = into_tokens.shapes, into_pyramid.shapes
    sides = (patch, patch) if isinstance(patch, int) else patch
    tokens = coordinates(*grid, *sides).flatten(0, 1)
    cells = torch.cat(
        [
            coordinates(*shape, s, s).flatten(0, 1)
            for shape, s in zip(pyramid, STRIDES[1:], strict=True)
        ]
    )
    seen = torch.tensor(
        [[8 * side for side in pyramid[0]], [a * b for a, b in zip(grid, sides, strict=True)]]
    )
    for plan, pixels, image in zip(plans, (tokens, cells), seen, strict=True):
        torch.testing.assert_close(plan.reference_points.view(-1, 2).flip(1) * image, pixels)
