"""Poolings with parameters: attention pooling is timm's, with its weights and those of transformers."""

import pytest
import timm
import torch
from timm.layers import resample_patch_embed

from mmlape.backbones import timm_archs
from mmlape.checkpoints import convert_with_report
from mmlape.pretraining.classifier import ViTClassifier
from mmlape.registry import MODELS

NAMES = {
    'vit_base_patch16_siglip_224': dict(num_heads=4, act='gelu', with_prefix=False),
    'vit_so150m_patch16_reg4_map_256': dict(with_prefix=False),
    'vit_pe_core_base_patch16_224': dict(num_heads=8, eps=1e-5, with_prefix=True),
}
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def pooling(**options):
    return MODELS.build(dict(dict(type='mmlape.AttentionPooling', embed_dims=16), **options))


@pytest.mark.parametrize('name', NAMES)
def test_pooled_tokens_are_timms(name):
    """Of a backbone, and of a classifier with timm's names and head."""
    options = dict(depth=2, embed_dim=48, num_heads=4, img_size=64, num_classes=5)
    source = timm.create_model(name, **options).eval()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    arch = timm_archs.describe(source)
    assert arch['pooling'].items() >= NAMES[name].items()
    network = dict(type='mmlape.VisionTransformer', arch=arch, out_type='pooled')
    model = MODELS.build(network).eval()
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    report.demand(1)
    assert set(report.left_out) == {'head.weight', 'head.bias'} and not report.fresh
    model.load_state_dict(state)
    classifier = ViTClassifier(arch, num_classes=5).eval()
    classifier.backbone.load_state_dict(state)
    classifier.head.load_state_dict(source.head.state_dict())
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = source.forward_head(source.forward_features(image), pre_logits=True)
        torch.testing.assert_close(model(image)[0], expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(classifier(image), source(image), atol=1e-4, rtol=0)
        assert model(torch.randn(1, 3, 50, 90))[0].shape == (1, 48)


@pytest.mark.parametrize('name', ['siglip', 'siglip2'])
def test_pooled_tokens_are_those_of_transformers(golden, name):
    meta, state, arrays = golden(f'transformers_{name}_vision')
    arch = timm_archs.describe(timm.create_model(meta['timm'], **meta['options']))
    arch['position']['resize'] = meta['resize'] or arch['position']['resize']
    model = MODELS.build(dict(type='mmlape.VisionTransformer', arch=arch, out_type='pooled')).eval()
    converted, report = convert_with_report(state, 'transformers', model)
    report.demand(1)
    assert not report.left_out and not report.fresh
    model.load_state_dict(converted)
    for index, size in enumerate(meta['sizes']):
        image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(index))
        with torch.no_grad():
            torch.testing.assert_close(model(image)[0], arrays[f'pooled{index}'], atol=1e-4, rtol=0)


def test_linear_patches_are_fitted_to_other_sizes(golden):
    """NaFlex stores them as a linear layer: as a convolution's, they are resampled."""
    meta, state, _ = golden('transformers_siglip2_vision')
    arch = timm_archs.describe(timm.create_model(meta['timm'], **meta['options']))
    network = dict(type='mmlape.VisionTransformer', arch=arch)
    own, larger = (MODELS.build(dict(network, patch_size=side)) for side in (8, 12))
    kernel = convert_with_report(state, 'transformers', own)[0]['patch_embed.proj.weight']
    found, report = convert_with_report(state, 'transformers', larger)
    assert 'patch_embed.proj.weight' in report.resized
    expected = resample_patch_embed(kernel, [12, 12])
    torch.testing.assert_close(found['patch_embed.proj.weight'], expected)
    odd = {**state, 'embeddings.patch_embedding.weight': torch.zeros(16, 190)}
    with pytest.raises(ValueError, match=r'patch_embed.proj.weight has the shape \(16, 190\)'):
        convert_with_report(odd, 'transformers', own)[1].demand(1)


def test_maps_and_other_poolings_leave_its_weights_out(golden):
    meta, state, _ = golden('transformers_siglip_vision')
    arch = timm_archs.describe(timm.create_model(meta['timm'], **meta['options']))
    for out_type in ('featmap', 'avg'):
        model = MODELS.build(dict(type='mmlape.VisionTransformer', arch=arch, out_type=out_type))
        report = convert_with_report(state, 'transformers', model)[1]
        report.demand(1)
        assert model.pool is None
        assert set(report.left_out.values()) >= {'of the classifier'}
        assert 'pool.latent' in report.left_out
