"""The light adapter: what its maps are, which weights fit, what is built."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_adapter, build_light_adapter, randomise
from foundation_kinds import KINDS, load, source

from mmlape.checkpoints import convert_with_report
from mmlape.registry import MODELS


@pytest.mark.parametrize('patch', [14, 16])
def test_maps_are_a_convolution_of_both(patch):
    """Resized and concatenated first; here the ViT's map is projected on its own grid."""
    layers = [0, 2, 3]
    model = randomise(build_light_adapter(dict(patch_size=patch), vit_layers=layers)).eval()
    image = torch.randn(2, 3, 64, 96)
    priors, hidden = [], model.spm.stem(image)
    for index in range(4):
        hidden = hidden if not index else getattr(model.spm, f'conv{index + 1}')(hidden)
        priors.append(hidden)
    model.vit.out_indices = tuple(layers)
    vit_maps = model.vit(image)
    for index, found in enumerate(model(image)):
        own, lateral = (
            getattr(part, name + str(index + 1))
            for part, name in ((model.spm, 'fc'), (model, 'lateral'))
        )
        scale = patch / 2 ** (index + 2)
        wide = F.interpolate(
            vit_maps[max(index - 1, 0)],
            scale_factor=scale,
            mode='bilinear',
            recompute_scale_factor=False,
        )
        rows, columns = priors[index].shape[-2:]
        both = torch.cat([wide[..., :rows, :columns], priors[index]], dim=1)
        weight = torch.cat([lateral.weight, own.weight], dim=1)
        expected = getattr(model, f'norm{index + 1}')(
            F.conv2d(both, weight, lateral.bias + own.bias)
        )
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_default_layers():
    """Of a depth that three divides, and of one that it does not."""
    for depth, expected in ((12, (3, 7, 11)), (4, (1, 2, 3)), (2, (0, 1, 1)), (1, (0, 0, 0))):
        arch = dict(embed_dims=8, depth=depth, num_heads=2, mlp_ratio=1)
        assert build_light_adapter(dict(arch=arch)).vit_layers == expected


@pytest.mark.parametrize('out_indices', [(1, 2, 3), [3, 0], 3, -1])
def test_out_indices_choose_maps(out_indices):
    """Those of the whole adapter; all that is built has a gradient."""
    whole = build_light_adapter().eval()
    chosen = build_light_adapter(out_indices=out_indices).eval()
    state, report = convert_with_report(whole.state_dict(), 'mmlape', chosen)
    assert report.matched_fraction == 1
    chosen.load_state_dict(state, strict=True)
    image = torch.randn(1, 3, 50, 70)
    every, maps = whole(image), chosen(image)
    assert all(torch.equal(a, every[i]) for i, a in zip(chosen.out_indices, maps, strict=True))
    sum(each.square().sum() for each in maps).backward()
    missing = [name for name, p in chosen.named_parameters() if p.grad is None]
    assert missing == []


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('kind', ['registers', 'rotary', 'differential'])
def test_around_timms_vits(kind):
    """Weights go to the ViT; prefix tokens run through its layers and are left out of maps."""
    vit = dict(arch=source(kind)[1])
    model = MODELS.build(dict(type='mmlape.LightViTAdapter', vit=vit, with_cp=True)).train()
    assert KINDS[kind] and all(not name.startswith('vit.') for name in load(kind, model).fresh)
    maps = model(torch.randn(2, 3, 50, 90))
    assert [each.shape[2:] for each in maps] == [(13, 23), (7, 12), (4, 6), (2, 3)]
    sum(each.sin().sum() for each in maps).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_it_is_smaller_than_the_other():
    """Whose maps have the same strides and channels."""
    light, full = build_light_adapter(), build_adapter()
    beside = [
        sum(p.numel() for p in m.parameters()) - sum(p.numel() for p in m.vit.parameters())
        for m in (light, full)
    ]
    assert beside[0] < beside[1] / 4
    image = torch.randn(1, 3, 40, 70)
    assert [m.shape for m in light.eval()(image)] == [m.shape for m in full.eval()(image)]
