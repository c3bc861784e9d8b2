"""Poolings with parameters: attention pooling is timm's. That of transformers: checkpoints/test_transformers.py."""

import pytest
import torch
from foundation_kinds import of_transformers, small, vit
from timm.layers import resample_patch_embed

from mmlape.checkpoints import convert_with_report
from mmlape.research.pretraining.classifier import ViTClassifier

NAMES = {
    'vit_base_patch16_siglip_224': dict(num_heads=4, act='gelu', with_prefix=False),
    'vit_so150m_patch16_reg4_map_256': dict(with_prefix=False),
    'vit_pe_core_base_patch16_224': dict(num_heads=8, eps=1e-5, with_prefix=True),
}
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


@pytest.mark.parametrize('name', NAMES)
def test_pooled_tokens_are_timms(name):
    """Of a backbone, and of a classifier with timm's names and head."""
    source, arch = small(name, img_size=64, num_classes=5)
    assert arch['pooling'].items() >= NAMES[name].items()
    model = vit(arch=arch, out_type='pooled')
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


def test_linear_patches_are_fitted_to_other_sizes(golden):
    """NaFlex stores them as a linear layer: as a convolution's, they are resampled."""
    meta, state, _ = golden('transformers_siglip2_vision')
    own, larger = (of_transformers(meta, patch_size=side) for side in (8, 12))
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
    for out_type in ('featmap', 'avg'):
        model = of_transformers(meta, out_type=out_type)
        report = convert_with_report(state, 'transformers', model)[1]
        report.demand(1)
        assert model.pool is None
        assert set(report.left_out.values()) >= {'of the classifier'}
        assert 'pool.latent' in report.left_out
