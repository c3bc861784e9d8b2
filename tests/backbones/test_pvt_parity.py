"""PVT and PVTv2 against published code, MMDetection and timm; published sizes and costs."""

import pytest
import torch
from backbone_variants import PYRAMID_ARCH, build_pvt, randomise
from mmdet.models.backbones import PyramidVisionTransformer as UpstreamPVT
from mmdet.models.backbones import PyramidVisionTransformerV2 as UpstreamPVTv2
from mmdet.models.backbones.pvt import pvt_convert
from timm.models.pvt_v2 import PyramidVisionTransformerV2 as TimmPVTv2

from mmlape.checkpoints import convert_with_report

ARCH = dict(
    embed_dims=[16, 32, 80, 128],
    depths=[1, 2, 2, 1],
    num_heads=[1, 2, 5, 8],
    mlp_ratios=[4, 4, 2, 2],
    sr_ratios=[8, 4, 2, 1],
)


def golden_pvt(meta, **options):
    arch = {key: meta[key] for key in PYRAMID_ARCH}
    return build_pvt(arch=arch, img_size=meta['img_size'], **options).eval()


def test_parity_with_published_pvt(golden):
    """All tokens of all stages within 1e-4, the class token of stage 4 included."""
    meta, state, arrays = golden('pvt_ln')
    model = golden_pvt(meta, with_cls_token=True)
    converted, report = convert_with_report(state, 'pvt', model)
    assert report.matched_fraction == 1 and report.unused == ['norm.bias', 'norm.weight']
    model.load_state_dict(converted, strict=True)
    stages = list(model.walk(arrays['input']))
    assert [layout.grid for _, layout in stages] == [(56, 56), (28, 28), (14, 14), (7, 7)]
    for index, (tokens, _) in enumerate(stages, start=1):
        assert torch.allclose(tokens, arrays[f'stage{index}'], atol=1e-4, rtol=0)
    maps = model(arrays['input'])[-1].flatten(2).transpose(1, 2)
    assert torch.equal(maps, stages[-1][0][:, 1:])


def test_parity_with_published_dtn_pvt(golden):
    """One norm_cfg gives DTN in stages 1 to 3, pooled by 4 and 2, and LayerNorm in stage 4; all within 1e-4."""
    meta, state, arrays = golden('pvt_dtn')
    model = golden_pvt(meta, with_cls_token=True, norm_cfg=dict(type='mmlape.DTN'))
    converted, report = convert_with_report(state, 'pvt', model)
    assert report.matched_fraction == 1
    unused = {name for name in report.unused if not name.endswith('pos_proj.bias')}
    assert unused == {'norm.bias', 'norm.weight'}
    model.load_state_dict(converted, strict=True)
    for index, (tokens, _) in enumerate(model.walk(arrays['input']), start=1):
        assert torch.allclose(tokens, arrays[f'stage{index}'], atol=1e-4, rtol=0)


def test_published_weights_without_their_class_token(golden):
    """Stages 1 to 3 are the same; the class token's row of the last table is left out."""
    meta, state, arrays = golden('pvt_ln')
    model = golden_pvt(meta)
    converted, report = convert_with_report(state, 'pvt', model)
    model.load_state_dict(converted, strict=True)
    assert report.unused == ['cls_token', 'norm.bias', 'norm.weight']
    assert report.resized == {'pos_embed4': '1 + 7 x 7 rows to 0 + 7 x 7'}
    for index, maps in enumerate(model(arrays['input'])[:3], start=1):
        tokens = maps.flatten(2).transpose(1, 2)
        assert torch.allclose(tokens, arrays[f'stage{index}'], atol=1e-4, rtol=0)


def upstream(cls, ours, **options):
    """MMDetection's network with the weights of ours, through its own converter of published names."""
    model = cls(
        embed_dims=16,
        num_layers=ARCH['depths'],
        mlp_ratios=ARCH['mlp_ratios'],
        drop_path_rate=0.0,
        norm_cfg=dict(type='LN', eps=1e-5),
        **options,
    )
    missing, unexpected = model.load_state_dict(pvt_convert(ours.state_dict()), strict=False)
    assert not missing and not unexpected
    return model.eval()


# A smaller eps than in published code would hide behind the tolerance; here all are alike.
EPS = dict(type='mmlape.LN', eps=1e-5)


@pytest.mark.parametrize('size', [(224, 224), (448, 448), (256, 320), (64, 352)])
@pytest.mark.parametrize('version', ['', 'V2'])
def test_equals_mmdet(version, size):
    """At multiples of 32, where no padding is needed."""
    ours = randomise(build_pvt(version, arch=ARCH, img_size=224, norm_cfg=EPS))
    theirs = upstream({'': UpstreamPVT, 'V2': UpstreamPVTv2}[version], ours)
    for stage in range(4):
        if version:
            getattr(ours, f'norm{stage + 1}').eps = 1e-5
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        pairs = list(zip(ours(image), theirs(image), strict=True))
    for stage, (got, expected) in enumerate(pairs):
        assert got.shape == (
            2,
            ARCH['embed_dims'][stage],
            size[0] >> 2 + stage,
            size[1] >> 2 + stage,
        )
        assert torch.allclose(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('linear', [False, True])
def test_equals_timm(linear):
    options = {key: tuple(value) for key, value in ARCH.items()}
    theirs = randomise(TimmPVTv2(linear=linear, num_classes=7, **options))
    ours = build_pvt('V2', arch=ARCH, linear=linear).eval()
    converted, report = convert_with_report(theirs.state_dict(), 'timm', ours)
    assert report.matched_fraction == 1 and report.unused == ['head.bias', 'head.weight']
    ours.load_state_dict(converted)
    image = torch.randn(1, 3, 96, 160)
    with torch.no_grad():
        for got, expected in zip(ours(image), theirs.forward_intermediates(image)[1], strict=True):
            assert torch.allclose(got, expected, atol=1e-4, rtol=1e-4)
