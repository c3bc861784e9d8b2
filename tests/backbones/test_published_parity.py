"""Networks against their published code: the same weights, tokens, scores and gradients."""

import pytest
import torch
import torch.nn.functional as F
from backbone_variants import ARCH, DTN, PYRAMID_ARCH, build_ceit, build_pvt

from mmlape.checkpoints import convert, convert_with_report
from mmlape.registry import MODELS

POSITIONS = {
    'learnable': dict(position=dict(type='mmlape.LearnedPosition')),
    '1D_sin': dict(position=dict(type='mmlape.SinusoidalPosition', axes=1)),
    '2D_sin': dict(position=dict(type='mmlape.SinusoidalPosition', axes=2)),
    '2D_RPE': dict(
        position=dict(type='mmlape.NoPosition'), attention_position=dict(type='mmlape.RelativePositionBias')
    ),
}  # fmt: skip
JOININGS = {
    'basic': 'Default', 'default': 'Default', 'share': 'Shared', 'unshare': 'Unshared', 'LaPE': 'LaPE', 'lape': 'LaPE'
}  # fmt: skip
LAPE_VITS = (
    'default_learnable', 'default_sin1d', 'default_sin2d', 'shared_learnable', 'unshared_learnable', 'lape_learnable',
    'lape_sin1d', 'lape_sin2d', 'relative_default', 'relative_lape',
)  # fmt: skip
COMPACT = {
    'vit_lite': dict(patch_size=4, with_cls_token=True, out_type='cls_token'),
    'cvt': dict(patch_size=4, out_type=dict(type='mmlape.SequencePooling')),
    'cct': dict(
        stem=dict(type='mmlape.ConvPoolStem', kernel_size=3), out_type=dict(type='mmlape.SequencePooling')
    ),
}  # fmt: skip
# Golden file: the format of its weights.
CASES = {
    **{f'lape_vit_{name}': 'lape' for name in LAPE_VITS},
    **{f'ceit_{joining}': 'ceit' for joining in ('default', 'lape')},
    **{f'{name}_{joining}': 'compact' for name in COMPACT for joining in ('default', 'lape')},
    **{f't2t_{tokens}_{joining}': 't2t' for tokens in ('performer', 'transformer') for joining in ('default', 'lape')},
}  # fmt: skip
# Entries of published files that these networks do not have.
UNUSED = {
    'lape': {'pos_embed', 'attn.relative_position_index'},
    'ceit': {'head.weight', 'head.bias'},
    'compact': {'fc.weight', 'fc.bias'},
    't2t': {'pos_embed', 'head.weight', 'head.bias'},
}


def build(source, meta, **options):
    arch = dict(embed_dims='embed_dim', depth='depth', num_heads='num_heads', mlp_ratio='mlp_ratio')
    config = dict(arch={ours: meta[theirs] for ours, theirs in arch.items() if theirs in meta})
    if meta['joining'] in JOININGS:
        joining = JOININGS[meta['joining']]
        config['joining'] = dict(type=f'mmlape.{joining}{"" if joining == "LaPE" else "Joining"}')
        if joining == 'LaPE' and 'pe_norm_eps' in meta:
            config['joining']['eps'] = meta['pe_norm_eps']
    if source == 'lape':
        config.update(POSITIONS[meta['position']], patch_size=meta['patch_size'])
        if meta['joining'] == 'LN':
            config['attention_position'] = dict(config['attention_position'], layer_norm=True)
    elif source == 't2t':
        tokens = dict(type=f'mmlape.{meta["tokens_type"].capitalize()}Tokens')
        config.update(tokens=tokens, token_dims=meta['token_dim'])
    elif source == 'compact':
        config.update(COMPACT[meta['model']])
    kind = dict(lape='VisionTransformer', ceit='CeiT', compact='CompactTransformer', t2t='T2TViT')
    base = dict(type=f'mmlape.{kind[source]}', img_size=meta.get('img_size'), out_type='cls_token')
    return MODELS.build({**base, **config, **options}).eval()


def scores(model, image, state):
    """Scores of the published head, or the tokens where there is none, and the tokens of the last layer."""
    ((tokens, layout),) = list(model.walk(image))[-1:]
    tokens = model.finish(model.num_units - 1, tokens, layout)
    head = next(
        (n.removesuffix('weight') for n in state if n.endswith(('head.weight', 'fc.weight'))), None
    )
    if head is None:
        return tokens, tokens
    (vector,) = model(image)
    return F.linear(vector, state[f'{head}weight'], state[f'{head}bias']), tokens


@pytest.mark.parametrize('name', CASES)
def test_parity_with_the_published_code(golden, name):
    """Outputs within 1e-4, gradients within 1e-3 relative; LaPE's norms are those of its published code."""
    source = CASES[name]
    meta, state, arrays = golden(name)
    model = build(source, meta)
    converted, report = convert_with_report(state, source, model)
    assert report.matched_fraction == 1
    assert {n if n.count('.') < 2 else n.split('.', 2)[2] for n in report.unused} <= UNUSED[source]
    model.load_state_dict(converted, strict=True)
    image = arrays['input'].requires_grad_()
    result, tokens = scores(model, image, state)
    if source == 'ceit':  # nothing reads what its last layer makes of the cells
        tokens, arrays['tokens'] = tokens[:, :1], arrays['tokens'][:, :1]
    torch.testing.assert_close(tokens, arrays['tokens'], atol=1e-4, rtol=0)
    torch.testing.assert_close(result, arrays.get('logits', arrays['tokens']), atol=1e-4, rtol=0)
    (result * arrays['cotangent']).sum().backward()
    expected = {key[5:]: array for key, array in arrays.items() if key.startswith('grad/')}
    norms = getattr(model.position.joining, 'norms', []) if model.position else []
    assert any('norm' in key for key in expected) == bool(len(norms))
    for key, array in expected.items():
        part = (
            image
            if key == 'input'
            else model.position.embedding.pos_embed
            if 'pos' in key
            else None
        )
        part = model.position.joining.norms[int(key.split('.')[1])].weight if part is None else part
        assert (part.grad - array).norm() < 1e-3 * array.norm(), key


@pytest.mark.parametrize('name', ['pvt_ln', 'pvt_dtn'])
def test_parity_of_pvt(golden, name):
    """All tokens of all stages; one norm_cfg puts DTN into stages 1 to 3, pooled by 4 and 2."""
    meta, state, arrays = golden(name)
    options = dict(arch={key: meta[key] for key in PYRAMID_ARCH}, img_size=meta['img_size'])
    if name == 'pvt_dtn':
        options.update(norm_cfg=DTN)
    model = build_pvt(with_cls_token=True, **options).eval()
    converted, report = convert_with_report(state, 'pvt', model)
    assert report.matched_fraction == 1
    unused = {name for name in report.unused if not name.endswith('pos_proj.bias')}
    assert unused == {'norm.bias', 'norm.weight'}
    model.load_state_dict(converted, strict=True)
    stages = list(model.walk(arrays['input']))
    assert [layout.grid for _, layout in stages] == [(56, 56), (28, 28), (14, 14), (7, 7)]
    for index, (tokens, _) in enumerate(stages, start=1):
        torch.testing.assert_close(tokens, arrays[f'stage{index}'], atol=1e-4, rtol=0)
    maps = model(arrays['input'])
    assert torch.equal(maps[-1].flatten(2).transpose(1, 2), stages[-1][0][:, 1:])
    # Without the class token stages 1 to 3 are the same, and its row of the last table is left out.
    without = build_pvt(**options).eval()
    converted, report = convert_with_report(state, 'pvt', without)
    without.load_state_dict(converted, strict=True)
    assert 'cls_token' in report.unused
    assert report.resized == {'pos_embed4': '1 + 7 x 7 rows to 0 + 7 x 7'}
    for mine, expected in zip(without(arrays['input'])[:3], maps[:3], strict=True):
        torch.testing.assert_close(mine, expected)


def test_averaged_weights_and_other_tokens(golden):
    """Released T2T-ViT files hold ``state_dict_ema``; those of another stem are refused."""
    meta, state, _ = golden('t2t_performer_default')
    model = build('t2t', meta)
    wrapped = {'state_dict_ema': {f'module.{name}': value for name, value in state.items()}}
    found, expected = convert(wrapped, 't2t', model), convert(state, 't2t', model)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    with pytest.raises(ValueError, match='no place for'):
        convert(state, 't2t', build('t2t', golden('t2t_transformer_default').meta))


def test_maps_of_a_ceit_need_no_attention_over_layers(golden):
    """Dense prediction takes the published weights too, on images of any size."""
    meta, state, _ = golden('ceit_lape')
    model = build('ceit', meta, out_type='featmap', out_indices=[0, 2])
    assert model.across_layers is None
    converted, report = convert_with_report(state, 'ceit', model)
    assert {name.split('.')[0] for name in report.unused} == {'head', 'across_layers'}
    model.load_state_dict(converted)
    assert [tuple(maps.shape) for maps in model(torch.randn(1, 3, 50, 70))] == [(1, 32, 4, 5)] * 2
    both = build('ceit', meta, out_type='raw')
    both.load_state_dict(convert(state, 'ceit', both))
    image = torch.randn(1, 3, 33, 64)
    cells = both(image)[0][:, 1:].transpose(1, 2).unflatten(2, (3, 4))
    torch.testing.assert_close(model(image)[1], cells)


def test_a_vits_weights_are_refused():
    """CeiT's stem and feed-forward networks are others."""
    vit = MODELS.build(dict(type='mmlape.VisionTransformer', arch=ARCH))
    for source in ('timm', 'ceit'):
        with pytest.raises(ValueError, match=r'patch_embed|mlp'):
            convert(vit.state_dict(), source, build_ceit())
    with pytest.raises(ValueError, match='describes a CeiT'):
        convert(vit.state_dict(), 'ceit', vit)
