"""ViT-Lite, CVT and CCT: parity with the published networks, sizes, where norms go, errors."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import build_compact, build_vit, count_parameters

from mmlape.checkpoints import convert, convert_with_report
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


@pytest.mark.parametrize('size', [(32, 32), (1, 1), (45, 30), (7, 100)])
@pytest.mark.parametrize('name', STEMS)
def test_any_size(name, size):
    model = build_compact(**STEMS[name]).eval()
    (maps,) = model(torch.randn(2, 3, *size))
    stride = model.patch_embed.stride
    assert maps.shape == (2, 24, -(-size[0] // stride[0]), -(-size[1] // stride[1]))


@pytest.mark.parametrize('size', [(1, 1), (2, 9), (33, 17), (40, 64)])
def test_several_convolutions_and_strides(size):
    options = dict(embed_dims=8, kernel_size=(7, 3), stride=(2, 1), num_convs=2, hidden_dims=4)
    stem = MODELS.build(dict(type='mmlape.ConvPoolStem', **options))
    tokens, layout = stem(torch.randn(1, 3, *size))
    assert stem.stride == (16, 4) and stem.grid_of(size) == layout.grid
    assert tokens.shape == (1, layout.num_cells, 8)


def test_initial_values():
    """As published: a table of std 0.2, a class token of zeros, a pooling and convolutions of their own."""
    model = build_compact(arch='vit-lite-7-4')
    assert model.position.embedding.pos_embed.std().item() == pytest.approx(0.2, abs=0.01)
    assert not model.cls_token.any()
    fan_in = 3 * 4 * 4
    assert model.patch_embed.proj.weight.std().item() == pytest.approx(
        (2 / fan_in) ** 0.5, rel=0.05
    )
    pooled = build_compact(arch='cvt-7-4', out_type='pooled')
    assert pooled.pool.score.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert pooled.blocks[0].attn.qkv.bias is None and pooled.norm.eps == 1e-5


@pytest.mark.parametrize(('arch', 'layers'), [('vit-lite-7-4', 5), ('cvt-7-4', 7)])
def test_where_dtn_goes(arch, layers):
    model = build_compact(arch=arch, norm_cfg=dict(type='mmlape.DTN'))
    with_dtn = [isinstance(b.norm1, DTN) and isinstance(b.norm2, DTN) for b in model.blocks]
    assert with_dtn == [layer < layers for layer in range(7)]
    assert model.prefix_after == (5 if arch == 'vit-lite-7-4' else 0)
    assert not isinstance(model.norm, DTN)


def test_published_weights_of_other_networks():
    """A pooling that the model has not is left out; layers and norms that it has not are not."""
    source = build_compact(arch='cct-7-3x1', joining=dict(type='mmlape.LaPE'), out_type=POOLING)
    state = published(source.state_dict())
    maps = build_compact(arch='cct-7-3x1', joining=dict(type='mmlape.LaPE'), img_size=48)
    converted, report = convert_with_report(state, 'compact', maps)
    assert {*report.unused} == {'pool.score.weight', 'pool.score.bias'}
    assert [*report.resized] == ['pos_embed']
    torch.testing.assert_close(converted['blocks.6.norm2.bias'], source.blocks[6].norm2.bias)
    for wrong, message in (
        (build_compact(arch='cvt-7-4', joining=dict(type='mmlape.LaPE')), 'a convolutional stem'),
        (build_vit(), 'describes a CompactTransformer'),
    ):
        with pytest.raises(ValueError, match=message):
            convert(state, 'compact', wrong)
    with pytest.raises(ValueError, match='describes a VisionTransformer'):
        convert(state, 'timm', maps)


def published(state):
    """Our names as the published code has them."""
    names = {
        'patch_embed.convs.0.': 'tokenizer.conv_layers.0.0.',
        'position.joining.norms.': 'pe_norm.',
        'pool.score.': 'classifier.attention_pool.',
        'pos_embed': 'classifier.positional_emb',
        'blocks.': 'classifier.blocks.',
        '.norm1.': '.pre_norm.',
        '.norm2.': '.norm1.',
        '.attn.': '.self_attn.',
        '.mlp.fc': '.linear',
    }
    renamed = {}
    for name, value in state.items():
        name = f'classifier.{name}' if name.startswith('norm.') else name
        for ours, theirs in names.items():
            name = name.replace(ours, theirs, 1)
        renamed[name] = value
    return renamed


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(stem=dict(type='mmlape.ConvPoolStem', kernel_size=4)), 'kernel_size must be odd'),
        (dict(stem=dict(type='mmlape.ConvPoolStem', num_convs=0)), 'num_convs must be at least 1'),
        (dict(position=dict(type='mmlape.LearnedPosition', std=-1)), 'std must be'),
        (dict(arch='cvt-7-5'), "'cvt-7-4'"),
        (dict(out_type='cls_token'), 'with_cls_token=True'),
        (dict(layer_scale=1), "unexpected keyword argument 'layer_scale'"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build_compact(**options)
