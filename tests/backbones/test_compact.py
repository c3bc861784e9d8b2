"""ViT-Lite, CVT and CCT: parity with the published networks, sizes, where norms go, errors."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_compact, count_parameters

from mmlape.checkpoints import convert_with_report
from mmlape.norm import DTN
from mmlape.pretraining import Classifier
from mmlape.registry import MODELS

STEMS = {
    'vit_lite': dict(patch_size=4, with_cls_token=True),
    'cvt': dict(patch_size=4),
    'cct': dict(stem=dict(type='mmlape.ConvPoolStem', kernel_size=3)),
}
JOININGS = {'default': 'mmlape.DefaultJoining', 'lape': 'mmlape.LaPE'}
POOLING = dict(type='mmlape.SequencePooling')


def build_golden(meta):
    """The network of a golden file, which returns what its head sees."""
    arch = dict(embed_dims='embed_dim', depth='depth', num_heads='num_heads', mlp_ratio='mlp_ratio')
    return MODELS.build(
        dict(
            type='mmlape.CompactTransformer',
            arch={ours: meta[theirs] for ours, theirs in arch.items()},
            img_size=meta['img_size'],
            joining=dict(type=JOININGS[meta['joining']]),
            out_type='cls_token' if meta['model'] == 'vit_lite' else POOLING,
            **STEMS[meta['model']],
        )
    ).eval()


@pytest.mark.parametrize('joining', JOININGS)
@pytest.mark.parametrize('name', STEMS)
def test_parity_with_the_published_networks(golden, name, joining):
    meta, state, arrays = golden(f'{name}_{joining}')
    model = build_golden(meta)
    converted, report = convert_with_report(state, 'compact', model)
    assert report.matched_fraction == 1
    assert {*report.unused} == {'fc.weight', 'fc.bias'}
    model.load_state_dict(converted, strict=True)
    head = [state[f'classifier.fc.{kind}'] for kind in ('weight', 'bias')]
    image = arrays['input'].requires_grad_()
    ((tokens, layout),) = list(model.walk(image))[-1:]
    torch.testing.assert_close(model.norm(tokens, layout), arrays['tokens'], atol=1e-4, rtol=0)
    logits = F.linear(model(image)[0], *head)
    torch.testing.assert_close(logits, arrays['logits'], atol=1e-4, rtol=0)

    (logits * arrays['cotangent']).sum().backward()
    grads = {key[5:]: arrays[key] for key in arrays if key.startswith('grad/')}
    assert len(grads) == (2 if joining == 'default' else 2 + meta['depth'])
    for key, expected in grads.items():
        name = key.replace('pe_norm', 'position.joining.norms')
        name = name if 'norm' in name else 'position.embedding.pos_embed'
        grad = image.grad if key == 'input' else model.get_parameter(name).grad
        assert (grad - expected).norm() <= 1e-3 * expected.norm(), key


@pytest.mark.parametrize(
    ('arch', 'rows', 'millions'),
    [('vit-lite-7-4', 65, 3.72), ('cvt-7-4', 64, 3.72), ('cct-7-3x1', 256, 3.76)],
)
def test_parameters_are_the_published_ones(arch, rows, millions):
    """LaPE (ICCV 2023), Table 2: with a head of 10 classes; LaPE adds a norm to each of 7 layers."""
    with torch.device('meta'):
        plain, lape = (
            Classifier('mmlape.CompactTransformer', arch=arch, num_classes=10, joining=joining)
            for joining in ('default', 'lape')
        )
    assert plain.backbone.position.embedding.pos_embed.shape == (1, rows, 256)
    assert round(count_parameters(plain) / 1e6, 2) == millions
    assert count_parameters(lape) - count_parameters(plain) == 7 * 2 * 256
    assert plain(torch.empty(2, 3, 32, 32, device='meta')).shape == (2, 10)


@pytest.mark.parametrize('size', [(1, 1), (2, 9), (33, 17), (40, 64)])
def test_several_convolutions_and_strides(size):
    options = dict(embed_dims=8, kernel_size=(7, 3), stride=(2, 1), num_convs=2, hidden_dims=4)
    stem = MODELS.build(dict(type='mmlape.ConvPoolStem', **options))
    tokens, layout = stem(torch.randn(1, 3, *size))
    assert stem.stride == (16, 4) and stem.grid_of(size) == layout.grid
    assert tokens.shape == (1, layout.num_cells, 8)


@pytest.mark.parametrize(('arch', 'layers'), [('vit-lite-7-4', 5), ('cvt-7-4', 7)])
def test_where_dtn_goes(arch, layers):
    model = build_compact(arch=arch, norm_cfg=dict(type='mmlape.DTN'))
    with_dtn = [isinstance(b.norm1, DTN) and isinstance(b.norm2, DTN) for b in model.blocks]
    assert with_dtn == [layer < layers for layer in range(7)]
    assert model.prefix_after == (5 if arch == 'vit-lite-7-4' else 0)
    assert not isinstance(model.norm, DTN)
