"""What autocast casts."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmlape.layers import (
    DeformableAttention,
    SpatialReductionAttention,
    attention,
    deformable,
    sampling_plan,
)

CPU = torch.device('cpu')


class Casts(TorchDispatchMode):
    """The sizes of what is cast."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def reduction(tokens):
    return SpatialReductionAttention(8, 2, sr_ratio=2).eval(), (tokens, (4, 6))


def sampling(tokens):
    plan = sampling_plan(((4, 6),), ((2, 2),), CPU)
    return DeformableAttention(8, 2, 1, 2).eval(), (tokens, torch.rand(1, 4, 8), plan)


@pytest.mark.parametrize('layer', [reduction, sampling])
@torch.no_grad()
def test_an_input_of_several_layers_is_cast_once(layer, monkeypatch):
    tokens = torch.randn(1, 24, 8)
    module, arguments = layer(tokens)
    with torch.autocast('cpu', torch.bfloat16):
        with Casts() as casts:
            found = module(*arguments)
        for each in (attention, deformable):
            monkeypatch.setattr(each, 'cast_once', lambda tokens: tokens)
        with Casts() as plain:
            assert torch.equal(module(*arguments), found)
    assert plain.sizes.count(tokens.numel()) == casts.sizes.count(tokens.numel()) + 1
    assert module(*arguments).dtype == torch.float32
