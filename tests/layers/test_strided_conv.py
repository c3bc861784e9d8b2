"""Convolutions on CPUs: strided ones of narrow maps in bfloat16, which PyTorch leaves unwritten, patches side by side,
and the memory format of maps."""

import copy
from functools import partial

import pytest
import torch
from backbone_variants import build_adapter, build_eomt, build_light_adapter
from torch import nn
from torch.profiler import profile

from mmlape.cpu.replace import PatchConv2d
from mmlape.layers.basic import StridedConv2d


@pytest.mark.parametrize(
    ('kernel', 'stride', 'padding'), [(8, 8, 0), (3, 2, 1), (7, 4, 3), (3, 1, 1)]
)
def test_narrow_maps(kernel, stride, padding):
    conv = StridedConv2d(3, 16, kernel, stride=stride, padding=padding)
    half = copy.deepcopy(conv).bfloat16()
    for width in (1, 2, 4, 8):
        maps = torch.randn(2, 3, 40, max(width, kernel - 2 * padding))
        expected = nn.Conv2d.forward(conv, maps)
        for _ in range(3):  # what memory held is another thing each time
            with torch.autocast('cpu', dtype=torch.bfloat16):
                cast = conv(maps)
            for found in (cast, half(maps.bfloat16())):
                assert found.dtype == torch.bfloat16
                torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.02)


@pytest.mark.parametrize(('side', 'batch'), [(1, 2), (2, 1), (4, 2)])
def test_patches_of_tokens_are_those_of_a_convolution(side, batch):
    """Values and gradients; maps of whole patches that are views of tokens need no convolution."""
    torch.manual_seed(0)
    conv = PatchConv2d(5, 6, side)
    tokens = torch.randn(batch, 8 * 12, 5, requires_grad=True)
    maps = tokens.transpose(1, 2).unflatten(2, (8, 12))
    inputs, found = (tokens, conv.weight, conv.bias), []
    for call in (conv, partial(nn.Conv2d.forward, conv)):
        out = call(maps)
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)
    assert found[0][0].flatten(2).transpose(1, 2).is_contiguous()
    with profile() as profiled:
        conv(maps)
    assert not [event.key for event in profiled.key_averages() if 'conv' in event.key]


def test_patches_of_other_maps():
    """What is left at the edge is left out, as by a convolution."""
    conv = PatchConv2d(5, 6, 2)
    tokens = torch.randn(1, 5 * 6, 5).transpose(1, 2).unflatten(2, (5, 6))
    for maps in (torch.randn(1, 5, 4, 6), tokens, tokens.transpose(2, 3)[:, :, :4]):
        torch.testing.assert_close(conv(maps), nn.Conv2d.forward(conv, maps))


@pytest.mark.parametrize('build', [build_adapter, build_light_adapter, build_eomt])
@pytest.mark.parametrize(
    ('processor', 'training', 'contiguous'),
    [
        ('AVX2', True, True),
        ('AVX2', False, False),
        ('AVX512', True, False),
        ('AVX512', False, False),
    ],
)
def test_memory_format(build, processor, training, contiguous, monkeypatch):
    """Without AVX-512, gradients of weights take two to three times as long with channels last."""
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: processor)
    model, seen = build(), set()
    for name, part in model.named_modules():
        convolves = isinstance(part, nn.Conv2d | nn.ConvTranspose2d) and part.groups == 1
        # The ViT takes images as they are; 1 x 1 is a product.
        if convolves and max(part.kernel_size) > 1 and 'patch_embed' not in name:
            part.register_forward_pre_hook(lambda _, args: seen.add(args[0].is_contiguous()))
    model.train(training)(torch.randn(2, 3, 64, 96))
    assert seen == {contiguous}
