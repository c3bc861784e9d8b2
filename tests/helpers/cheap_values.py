"""Cheap random initial values for networks whose outputs do not matter, and none for networks without memory."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

SMALL = 4096  # elements; smaller tensors are drawn as usual
DRAWN = 2**20


@contextmanager
def cheap_values() -> Iterator[None]:
    """Within, large tensors are filled with stretches of a few random numbers: drawing takes longer than a step."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(2 * DRAWN, generator=generator)
    numbers = {
        'uniform_': uniform,
        'normal_': torch.randn(2 * DRAWN, generator=generator),
        # PyTorch cuts a normal distribution at two standard deviations by this function of uniform numbers.
        'erfinv_': torch.erfinv(0.95 * (2 * uniform - 1)),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in numbers:
            patch.setattr(Tensor, name, _filling(name, numbers[name]))
        for name in ('uniform_', 'normal_', 'erfinv_', 'mul_', 'add_', 'clamp_', 'fill_', 'zero_'):
            patch.setattr(Tensor, name, _not_on_meta(getattr(Tensor, name)))
        yield


def _not_on_meta(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Without memory there is nothing to fill, and PyTorch takes milliseconds to find that out."""

    def fill(self: Tensor, *values, **options) -> Tensor:
        if isinstance(self, torch.nn.Parameter) and self.is_meta:
            return self
        return function(self, *values, **options)

    return fill


def _filling(name: str, numbers: Tensor) -> Callable[..., Tensor]:
    draw, starts = getattr(Tensor, name), itertools.count(0, 7919)

    def fill(self: Tensor, *limits: float, **options) -> Tensor:
        if self.is_meta:
            return self
        plain = self.is_contiguous() and (self.device.type, self.dtype) == ('cpu', torch.float32)
        if self.numel() < SMALL or options or not plain or type(self.data) is not Tensor:
            return draw(self, *limits, **options)
        low, high = (*limits, *(0.0, 1.0)[len(limits) :])
        scale = high if name == 'normal_' else high - low  # of normal_ these are mean and std
        for part in self.detach().view(-1).split(DRAWN):
            start = next(starts) % DRAWN
            torch.mul(numbers[start : start + len(part)], scale, out=part).add_(low)
        return self

    return fill
