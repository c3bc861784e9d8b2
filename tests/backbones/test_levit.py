"""LeViT against timm's: the same weights, the same vectors and gradients, in evaluation and in training."""

import re

import pytest
import torch
from backbone_variants import build_levit
from timm.models.levit import LevitDistilled

from mmlape.checkpoints import convert, convert_with_report

SIZES = dict(embed_dims=[16, 24, 40], depths=[2, 3, 1], num_heads=[2, 5, 3], key_dims=8)


def of_timm(size=(128, 96), **options):
    sizes = dict(embed_dim=(16, 24, 40), depth=(2, 3, 1), num_heads=(2, 5, 3), key_dim=8)
    model = LevitDistilled(img_size=size, num_classes=7, **sizes, **options)
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) * 0.2
    for name, buffer in model.named_buffers():
        if 'running' in name:
            buffer.copy_(torch.rand(buffer.shape, generator=draw) + 0.5)
    return model


def pair(size=(128, 96), **options):
    """timm's network, and ours with its weights."""
    theirs = of_timm(size, **options)
    ours = build_levit(arch=SIZES, img_size=size, out_type='avg', out_indices=2)
    ours.load_state_dict(convert(theirs.state_dict(), 'levit', ours), strict=True)
    return ours, theirs


@pytest.mark.parametrize('training', [False, True], ids=['eval', 'train'])
@pytest.mark.parametrize('size', [(128, 96), (224, 224)], ids=str)
def test_vectors_and_gradients_are_timms(size, training):
    # Gradients that batch norms cancel are noise in float32.
    models = ours, theirs = tuple(model.train(training).double() for model in pair(size))
    image = torch.randn(4, 3, *size).double()
    vectors = (
        ours(image)[0],
        theirs.forward_head(theirs.forward_features(image), pre_logits=True),
    )
    torch.testing.assert_close(*vectors, atol=1e-4, rtol=1e-4)
    cotangent = torch.randn(vectors[0].shape).double()
    for vector in vectors:
        (vector * cotangent).sum().backward()
    grads = {n: p.grad for n, p in theirs.named_parameters() if not n.startswith('head')}
    expected = convert(grads, 'levit', ours, min_matched=0.9)  # without running statistics
    for name, parameter in ours.named_parameters():
        gap = (parameter.grad - expected[name]).norm()
        assert gap < 1e-3 * expected[name].norm() + 1e-9, name
    if training:
        statistics = [dict(model.named_buffers()) for model in models]
        found = convert(theirs.state_dict(), 'levit', ours)
        for name, buffer in statistics[0].items():
            torch.testing.assert_close(buffer, found[name], atol=1e-4, rtol=1e-4)


def test_maps_and_heads_are_timms():
    """Scores of timm's heads on our vector are timm's; maps are those of its stages."""
    ours, theirs = (model.eval() for model in pair())
    image = torch.randn(2, 3, 128, 96)
    (vector,) = ours(image)
    scores = (theirs.head(vector) + theirs.head_dist(vector)) / 2
    torch.testing.assert_close(scores, theirs(image), atol=1e-4, rtol=1e-4)
    maps = build_levit(arch=SIZES, img_size=(128, 96)).eval()
    maps.load_state_dict(convert(theirs.state_dict(), 'levit', maps))
    found = theirs.forward_intermediates(image, intermediates_only=True)
    for mine, other in zip(maps(image), found, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def published(state):
    """timm's names as the published code's, branch by branch."""
    parts = {
        'attn.qkv.': 'm.qkv.', 'attn.proj.ln.': 'm.proj.1.', 'attn.attention_biases': 'm.attention_biases',
        'mlp.ln1.': 'm.0.', 'mlp.ln2.': 'm.2.', 'attn_downsample.q.ln.': 'q.1.', 'attn_downsample.kv.': 'kv.',
        'attn_downsample.proj.ln.': 'proj.1.', 'attn_downsample.attention_biases': 'attention_biases',
    }  # fmt: skip
    branches, renamed = [], {}
    for name in state:  # in the order of the network
        found = re.match(r'(stages\.\d\.(?:blocks\.\d|downsample)\.(?:attn|mlp))', name)
        if found and found[1] not in branches:
            branches.append(found[1])
    for name, tensor in state.items():
        found = re.match(r'(stages\.\d\.(?:blocks\.\d|downsample)\.(?:attn|mlp))', name)
        if found:
            rest = name.split('.', 4 if '.blocks.' in name else 3)[-1]
            theirs = next(part for part in parts if rest.startswith(part))
            number = branches.index(found[1])
            name = f'blocks.{number}.{parts[theirs]}{rest.removeprefix(theirs)}'
        stem = re.match(r'stem\.conv(\d)\.(.*)', name)
        if stem:
            name = f'patch_embed.{2 * int(stem[1]) - 2}.{stem[2]}'
        renamed[name.replace('head.linear', 'head.l').replace('.linear.', '.c.')] = tensor
    return renamed


def test_the_published_names_and_convolutions():
    theirs = of_timm()
    ours = build_levit(arch=SIZES, img_size=(128, 96))
    expected = convert(theirs.state_dict(), 'levit', ours)
    state = published(theirs.state_dict())
    assert {'blocks.4.kv.c.weight', 'blocks.5.m.2.c.weight', 'patch_embed.6.c.weight'} <= set(state)
    state['blocks.0.m.attention_bias_idxs'] = torch.zeros(48, 48, dtype=torch.long)
    convolutions = {
        name: tensor[..., None, None]
        if tensor.ndim == 2 and name.endswith('linear.weight')
        else tensor
        for name, tensor in theirs.state_dict().items()
        if not name.startswith('head')
    }
    for other, source in ((state, 'levit'), (convolutions, 'levit'), (convolutions, 'timm')):
        found, report = convert_with_report(other, source, ours)
        assert report.matched_fraction == 1 and found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
    first = build_levit(arch=SIZES, img_size=(128, 96), out_indices=0)
    assert all('patch_embed2' not in name for name in convert(state, 'levit', first))
