"""Swin against timm's and MMDetection's: the same weights, the same maps and gradients."""

import pytest
import timm
import torch
from mmdet.models import SwinTransformer as OpenMMLabSwin

from mmlape.checkpoints import convert
from mmlape.registry import MODELS

SIZES = dict(embed_dims=12, depths=[2, 2, 4, 2], num_heads=[1, 2, 3, 6])


def build(**options):
    arch = options.pop('arch', SIZES)
    return MODELS.build(dict(type='mmlape.SwinTransformer', arch=arch, **options)).eval()


def randomised(model):
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    model.eval()  # which returns nothing in MMDetection's
    return model


def openmmlab(**options):
    return randomised(
        OpenMMLabSwin(embed_dims=12, depths=[2, 2, 4, 2], num_heads=[1, 2, 3, 6], **options)
    )


def of_timm(size=224, **options):
    return randomised(
        timm.models.SwinTransformer(
            img_size=size, embed_dim=12, depths=(2, 2, 4, 2), num_heads=(1, 2, 3, 6), **options
        )
    )


def load(model, state):
    model.load_state_dict(convert(state, 'swin', model), strict=True)
    return model


@pytest.mark.parametrize('size', [(224, 224), (256, 256), (131, 250), (64, 300), (29, 33)])
def test_maps_are_those_of_mmdetection(size):
    theirs = openmmlab()
    ours = load(build(shift_alone=True), theirs.state_dict())
    image = torch.randn(2, 3, *size)
    for mine, other in zip(ours(image), theirs(image), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_gradients_are_those_of_mmdetection():
    theirs = openmmlab()
    ours = load(build(shift_alone=True), theirs.state_dict())
    image = torch.randn(1, 3, 160, 120)
    for model in (ours, theirs):
        sum(output.square().mean() for output in model(image)).backward()
    grads = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    expected = convert(grads, 'swin', ours)
    for name, parameter in ours.named_parameters():
        gap = (parameter.grad - expected[name]).norm() / expected[name].norm()
        assert gap < 1e-3, name


@pytest.mark.parametrize('size', [224, 448])
def test_classifier_is_that_of_timm(size):
    theirs = of_timm(size)
    ours = load(build(out_type='avg', out_indices=3), theirs.state_dict())
    image = torch.randn(2, 3, size, size)
    expected = theirs.forward_head(theirs.forward_features(image), pre_logits=True)
    torch.testing.assert_close(ours(image)[0], expected, atol=1e-4, rtol=1e-4)


def test_the_published_layout_and_timms_weights_by_source():
    """In the published files merging belongs to the end of a stage, and buffers of windows are stored."""
    theirs = of_timm()
    expected = convert(theirs.state_dict(), 'swin', build())
    published = {
        name.replace('layers.1.down', 'layers.0.down')
        .replace('layers.2.down', 'layers.1.down')
        .replace('layers.3.down', 'layers.2.down'): tensor
        for name, tensor in theirs.state_dict().items()
    }
    published['layers.0.blocks.1.attn_mask'] = torch.zeros(64, 49, 49)
    published['layers.0.blocks.1.attn.relative_position_index'] = torch.zeros(49, 49)
    for state, source in ((published, 'swin'), (theirs.state_dict(), 'timm')):
        found = convert(state, source, build())
        assert found.keys() == expected.keys()
        named = [name for name in found if not name.startswith('norm')]
        assert all(torch.equal(found[name], expected[name]) for name in named)
