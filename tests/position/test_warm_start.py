"""LaPE on top of default-joined weights: the same output at step 0, a position branch that learns."""

import pytest
import torch
from backbone_variants import build_adapter, build_vit

from mmlape.checkpoints import convert_with_report

CONSTRUCTIONS = ['affine', 'gate']


@pytest.mark.parametrize('construction', CONSTRUCTIONS)
@pytest.mark.parametrize('build', [build_vit, lambda **vit: build_adapter(vit)])
def test_first_output_equals_the_checkpoints_to_the_bit(construction, build):
    trained = build(joining=dict(type='mmlape.DefaultJoining')).eval()
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model = build(joining=dict(type='mmlape.LaPEWarmStart', construction=construction)).eval()
    state, report = convert_with_report(trained.state_dict(), 'mmlape', model)
    model.load_state_dict(state, strict=True)
    assert all('joining' in name for name in report.fresh)
    for size in ((64, 64), (40, 100)):
        image = torch.randn(2, 3, *size)
        for got, expected in zip(model(image), trained(image), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize('construction', CONSTRUCTIONS)
def test_every_layer_learns_from_the_first_step(construction):
    model = build_vit(joining=dict(type='mmlape.LaPEWarmStart', construction=construction))
    model(torch.randn(2, 3, 64, 64))[0].square().sum().backward()
    for layer in range(4):
        branch = model.position.joining.layer_modules(layer)
        assert any(p.grad.abs().max() > 0 for module in branch for p in module.parameters())


@pytest.mark.parametrize(('construction', 'per_layer'), [('affine', 48), ('gate', 72)])
def test_parameters(construction, per_layer):
    config = dict(type='mmlape.LaPEWarmStart', construction=construction, layers=[0, 2])
    joining = build_vit(joining=config).position.joining
    assert sum(p.numel() for p in joining.parameters()) == 2 * per_layer
    counts = [len(joining.layer_modules(layer)) for layer in range(4)]
    assert counts == ([1, 0, 1, 0] if construction == 'affine' else [2, 0, 2, 0])


def test_unknown_construction():
    with pytest.raises(ValueError, match='construction must be one of'):
        build_vit(joining=dict(type='mmlape.LaPEWarmStart', construction='zero'))
