"""Coordinates that are moved and stretched at random in training (DINOv3, arXiv 2025)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmlape.checks import check_number
from mmlape.signatures import checked_options


@checked_options
class RandomCoordinates:
    """How far the coordinates of a pass are moved and stretched, those of all cells alike.

    Numbers are drawn by timm's steps from torch's generator of the CPU, whatever the device: equal seeds give equal
    coordinates. What is left out draws nothing.

    Args:
        shift: Largest shift, of each axis by itself. Default 0.
        jitter: Largest factor, of each axis by itself; as likely as its inverse. Default 1.
        rescale: Largest factor of both axes, likewise. Default 1.

    Raises:
        ValueError: If ``shift`` is below 0, or a factor below 1.
    """

    def __init__(self, shift: float = 0.0, jitter: float = 1.0, rescale: float = 1.0) -> None:
        self.shift = check_number('shift', shift, minimum=0)
        self.jitter = check_number('jitter', jitter, minimum=1)
        self.rescale = check_number('rescale', rescale, minimum=1)

    def draw(self) -> tuple[Tensor, Tensor]:
        """What is added to the coordinates ``(N, 2)``, and by what they are multiplied then, ``(2,)`` each."""
        shift, factor = torch.zeros(2), torch.ones(2)
        if self.shift:
            shift.uniform_(-self.shift, self.shift)
        for largest, axes in ((self.jitter, 2), (self.rescale, 1)):
            if largest > 1:
                power = math.log(largest)
                factor = factor * torch.empty(axes).uniform_(-power, power).exp()
        return shift, factor
