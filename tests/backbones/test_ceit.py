"""CeiT: parity with the published code, parameter counts, the class token of all layers, errors."""

import pytest
import torch
from backbone_variants import build_ceit
from torch.utils.flop_counter import FlopCounterMode

from mmlape.checkpoints import convert, convert_with_report
from mmlape.registry import MODELS


def build_golden(meta, **options):
    names = dict(embed_dims='embed_dim', depth='depth', num_heads='num_heads')
    joining = dict(default='DefaultJoining', lape='LaPE')[meta['joining']]
    arch = {key: meta[theirs] for key, theirs in names.items()}
    base = dict(arch=arch, img_size=meta['img_size'], joining=dict(type=f'mmlape.{joining}'))
    return MODELS.build(dict(dict(base, type='mmlape.CeiT', out_type='cls_token'), **options))


@pytest.mark.parametrize('joining', ['default', 'lape'])
def test_parity_with_the_published_code(golden, joining):
    """Outputs within 1e-4, gradients within 1e-3 relative; LaPE's norms are those of its published code."""
    meta, state, arrays = golden(f'ceit_{joining}')
    model = build_golden(meta).eval()
    converted, report = convert_with_report(state, 'ceit', model)
    assert report.matched_fraction == 1
    assert sorted(report.unused) == ['head.bias', 'head.weight']
    model.load_state_dict(converted, strict=True)
    image = arrays['input'].requires_grad_()
    (vector,) = model(image)
    torch.testing.assert_close(vector, arrays['tokens'][:, 0], atol=1e-4, rtol=0)
    logits = vector @ state['head.weight'].T + state['head.bias']
    torch.testing.assert_close(logits, arrays['logits'], atol=1e-4, rtol=0)
    (logits * arrays['cotangent']).sum().backward()
    grads = dict(input=image.grad, position=model.position.embedding.pos_embed.grad)
    for layer, norm in enumerate(getattr(model.position.joining, 'norms', [])):
        grads[f'pe_norm.{layer}.weight'] = norm.weight.grad
    expected = {key[5:]: array for key, array in arrays.items() if key.startswith('grad/')}
    assert grads.keys() == expected.keys()
    for name, grad in grads.items():
        assert (grad - expected[name]).norm() < 1e-3 * expected[name].norm(), name


@pytest.mark.parametrize(
    ('arch', 'parameters', 'millions_of_flops'),
    # Published (CeiT, ICCV 2021): 6.4 M and 1.2 G, 24.2 M and 4.5 G, with a head of 1000 classes; attention's products,
    # 179 and 358 M, are not among theirs.
    [('ceit-tiny', 6_356_904, 1399), ('ceit-small', 24_204_840, 4775)],
)
def test_size_is_the_published_one(arch, parameters, millions_of_flops):
    with torch.device('meta'):
        model = MODELS.build(dict(type='mmlape.CeiT', arch=arch, out_type='cls_token')).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 224, 224, device='meta'))
    head = 1000 * (model.embed_dims + 1)
    assert sum(parameter.numel() for parameter in model.parameters()) + head == parameters
    assert round(counter.get_total_flops() / 2e6) == millions_of_flops


def test_maps_need_no_attention_over_layers(golden):
    """Dense prediction takes the published weights too, on images of any size."""
    meta, state, _ = golden('ceit_lape')
    model = build_golden(meta, out_type='featmap', out_indices=[0, 2]).eval()
    assert model.across_layers is None
    converted, report = convert_with_report(state, 'ceit', model)
    assert {name.split('.')[0] for name in report.unused} == {'head', 'across_layers'}
    model.load_state_dict(converted)
    assert [tuple(maps.shape) for maps in model(torch.randn(1, 3, 50, 70))] == [(1, 32, 4, 5)] * 2
    both = build_golden(meta, out_type='raw').eval()
    both.load_state_dict(convert(state, 'ceit', both))
    image = torch.randn(1, 3, 33, 64)
    cells = both(image)[0][:, 1:].transpose(1, 2).unflatten(2, (3, 4))
    torch.testing.assert_close(model(image)[1], cells)


def test_a_vits_weights_are_refused():
    state = MODELS.build(
        dict(type='mmlape.VisionTransformer', arch=dict(embed_dims=24, depth=4, num_heads=3))
    ).state_dict()
    for source in ('timm', 'ceit'):
        with pytest.raises(ValueError, match=r'patch_embed|mlp'):
            convert(state, source, build_ceit())
    with pytest.raises(ValueError, match='describes a CeiT'):
        convert(state, 'ceit', MODELS.build(dict(type='mmlape.VisionTransformer')))


def test_trains_on_a_single_cell():
    """Of which a batch norm knows no variance."""
    model = build_ceit(out_type='raw').train()
    (tokens,) = model(torch.randn(1, 3, 9, 16))
    tokens.square().sum().backward()
    assert tokens.shape == (1, 2, 24) and tokens.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in model.buffers())
