"""Coordinates that are moved and stretched at random in training (DINOv3, arXiv 2025)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mmlape.checks import check_number


class RandomCoordinates(NamedTuple):
    """How far coordinates of a pass are moved and stretched, all cells alike; None for not at all.

    Numbers are drawn by timm's steps from torch's generator of the CPU, whatever the device: equal seeds give equal
    coordinates.

    Attributes:
        shift: Largest shift, of each axis by itself.
        jitter: Largest factor, of each axis by itself; as likely as its inverse.
        rescale: Largest factor of both axes, likewise.
    """

    shift: float | None
    jitter: float | None
    rescale: float | None

    @classmethod
    def of(
        cls, shift: float | None, jitter: float | None, rescale: float | None
    ) -> RandomCoordinates:
        """Checked: a shift is at least 0, factors at least 1.

        Raises:
            ValueError: If one is out of range.
        """
        if shift is not None:
            shift = check_number('shift_coords', shift, minimum=0)
        if jitter is not None:
            jitter = check_number('jitter_coords', jitter, minimum=1)
        if rescale is not None:
            rescale = check_number('rescale_coords', rescale, minimum=1)
        return cls(shift, jitter, rescale)

    def draw(self) -> tuple[Tensor, Tensor] | None:
        """What is added to the coordinates ``(N, 2)``, and by what they are multiplied then, ``(2,)`` each; None if
        nothing is random."""
        if self == (None, None, None):
            return None
        shift, factor = torch.zeros(2), torch.ones(2)
        if self.shift is not None:
            shift = torch.empty(2).uniform_(-self.shift, self.shift)
        for largest, axes in ((self.jitter, 2), (self.rescale, 1)):
            if largest is not None:
                power = math.log(largest)
                factor = factor * torch.empty(axes).uniform_(-power, power).exp()
        return shift, factor
