"""How far outputs and gradients of a network on another device, or in another precision, are from those of the CPU."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

# Of outputs and of gradients. On a CPU the largest are 1e-3 and 0.07 in float16, 0.01 and 0.14 in bfloat16.
TOLERANCES = {'float32': (1e-4, 1e-3), 'float16': (0.01, 0.15), 'bfloat16': (0.05, 0.3)}
SCALE = 16  # of losses, for float16; more makes PerformerTokens overflow
LAPE = dict(joining=dict(type='mmlape.LaPE'))
DTN = dict(norm_cfg=dict(type='mmlape.DTN'))
# Of published sizes, with heads of 16 to 64 channels.
PUBLISHED = {
    'vit': dict(type='mmlape.VisionTransformer', arch='deit-tiny', **LAPE),
    'adapter': dict(type='mmlape.ViTAdapter', vit=dict(arch='deit-tiny', **LAPE)),
    'pvt': dict(type='mmlape.PyramidVisionTransformer', arch='tiny', **DTN),
    'pvtv2': dict(type='mmlape.PyramidVisionTransformerV2', arch='b0'),
    'swin': dict(type='mmlape.SwinTransformer', arch='tiny'),
    't2t': dict(type='mmlape.T2TViT'),
    'ceit': dict(type='mmlape.CeiT', arch='ceit-tiny'),
    'levit': dict(type='mmlape.LeViT', arch='levit-128s'),
    'compact': dict(type='mmlape.CompactTransformer', arch='cct-7-3x1'),
}


def autocast(device: torch.device, dtype: str):
    """Nothing for float32."""
    if dtype == 'float32':
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, dtype))


def step(model: nn.Module, *inputs: torch.Tensor, scale: float = SCALE) -> tuple[list, dict]:
    """Outputs, and gradients by name, on the CPU."""
    model.zero_grad()
    outputs = [each.float() for each in tree_leaves(model(*inputs))]
    (scale * sum(each.square().mean() for each in outputs)).backward()
    gradients = {
        name: parameter.grad.cpu() / scale
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return [each.detach().cpu() for each in outputs], gradients


def differences(found: tuple[list, dict], wanted: tuple[list, dict]) -> tuple[float, float]:
    """The largest of the outputs and of the gradients of two steps, relative to the norm of the second's."""
    assert found[1].keys() == wanted[1].keys()
    # Some gradients are rounding, such as those of biases before a norm.
    floor = 0.01 * max(each.norm() for each in wanted[1].values())
    outputs = max(_difference(*pair) for pair in zip(found[0], wanted[0], strict=True))
    return outputs, max(_difference(found[1][key], wanted[1][key], floor) for key in wanted[1])


def _difference(found: torch.Tensor, wanted: torch.Tensor, floor: float = 0.0) -> float:
    return ((found - wanted).norm() / (wanted.norm() + floor + 1e-12)).item()


def check(largest: tuple[float, float], dtype: str, record_property) -> None:
    """Record differences, and compare them with the tolerances of a type of numbers."""
    for name, value in zip(('outputs', 'gradients'), largest, strict=True):
        record_property(name, value)
    assert all(value <= most for value, most in zip(largest, TOLERANCES[dtype], strict=True)), (
        largest
    )


def randomised(model: nn.Module, std: float = 0.1) -> nn.Module:
    """Initial values hide errors: norms are equal, biases zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += std * torch.randn(parameter.shape)
    return model
