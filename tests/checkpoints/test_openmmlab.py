"""The Vision Transformers of MMSegmentation and MMPretrain in ours: outputs, names, refusals."""

import pytest
import torch
from foundation_kinds import shaken
from mmseg.models.backbones import VisionTransformer as MMSegViT

from mmlape.checkpoints import convert, convert_with_report
from mmlape.registry import MODELS

NORM = dict(type='LN', eps=1e-6)


def ours(**options):
    arch = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=4)
    return MODELS.build(
        dict(dict(type='mmlape.VisionTransformer', arch=arch, img_size=32, patch_size=8), **options)
    ).eval()


def mmseg_vit(**options):
    sizes = dict(img_size=(32, 32), patch_size=8, embed_dims=24, num_layers=2, num_heads=3)
    usual = dict(sizes, norm_cfg=NORM, final_norm=True, out_indices=(0, 1), patch_bias=True)
    return shaken(MMSegViT(**{**usual, **options}))


@pytest.mark.parametrize(
    ('theirs', 'mine'),
    [
        (dict(), dict()),
        (dict(patch_bias=False), dict()),
        (dict(final_norm=False), dict(final_norm=False)),
        (dict(qkv_bias=False), dict(qkv_bias=False)),
        (dict(with_cls_token=False), dict(with_cls_token=False)),
        (dict(pre_norm=True), dict(pre_norm=True)),
    ],
)
def test_equals_mmseg(theirs, mine):
    source, model = mmseg_vit(**theirs), ours(out_indices=[0, 1], **mine)
    state, report = convert_with_report(source.state_dict(), 'mmseg', model)
    report.demand(1)
    model.load_state_dict(state)
    for size in ((32, 32), (40, 56)):
        image = torch.randn(2, 3, *size)
        with torch.no_grad():
            for got, expected in zip(model(image), source(image), strict=True):
                assert torch.allclose(got, expected, atol=1e-5)
    # PyTorch's attention has no bias after it either where it has none before.
    filled = {'patch_embed.proj.bias': theirs.get('patch_bias', True)}
    filled.update({f'blocks.{n}.attn.proj.bias': theirs.get('qkv_bias', True) for n in (0, 1)})
    assert set(report.filled) == {name for name, there in filled.items() if not there}


@pytest.mark.parametrize(
    'options',
    [
        dict(),
        dict(layer_scale_init_value=0.1),
        dict(out_type='avg_featmap', final_norm=False),
        dict(pre_norm=True),
    ],
)
def test_equals_mmpretrain(options):
    from mmpretrain.models import backbones

    arch = dict(embed_dims=24, num_layers=2, num_heads=3, feedforward_channels=96)
    options = dict(dict(out_type='featmap'), **options)
    source = shaken(
        backbones.VisionTransformer(
            arch, img_size=32, patch_size=8, norm_cfg=NORM, with_cls_token=True, **options
        )
    )
    model = ours(
        layer_scale='layer_scale_init_value' in options,
        final_norm=options.get('final_norm', True),
        pre_norm=options.get('pre_norm', False),
    )
    state, report = convert_with_report(source.state_dict(), 'mmpretrain', model)
    report.demand(1)
    model.load_state_dict(state)
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        got, expected = model(image)[0], source(image)[0]
    if options['out_type'] == 'avg_featmap':
        got = source.ln2(got.flatten(2).mean(-1))
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    'options', [dict(pre_norm=True), dict(layer_cfgs=dict(ffn_type='swiglu_fused'))]
)
def test_mmpretrains_others_are_refused(options):
    from mmpretrain.models import backbones

    arch = dict(embed_dims=24, num_layers=2, num_heads=3, feedforward_channels=96)
    source = backbones.VisionTransformer(arch, img_size=32, patch_size=8, **options)
    with pytest.raises(ValueError, match=r'a norm before the first layer|a gated feed-forward'):
        convert(source.state_dict(), 'mmpretrain', ours(), min_matched=0)
