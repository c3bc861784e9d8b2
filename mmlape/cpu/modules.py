"""Modules that ``mmlape.cpu.optimize`` puts in place of PyTorch's and ours: same parameters, other arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmlape.layers.basic import PatchConv2d as PlainPatchConv2d
from mmlape.layers.deformable import SamplingPlan
from mmlape.norm.dtn_maps import DTNOptions
from mmlape.runtime.tracing import is_eager, is_exporting

from .deformable_sampling import deformable_sampling
from .dtn import dtn
from .library import is_there
from .linear import product


class Linear(nn.Linear):
    """``nn.Linear`` by oneDNN."""

    product = staticmethod(product)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., C)`` to ``(..., D)``."""
        return product(x, self.weight, self.bias)


class PatchConv2d(PlainPatchConv2d):
    """A convolution of patches as a product of matrices, where maps are views of tokens. The result is one again."""

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C', H', W')`` to ``(B, C, H, W)``."""
        side = self.kernel_size[0]
        fits = maps.is_cpu and not (maps.shape[2] % side or maps.shape[3] % side)
        # Tensors of a transform have no layout to ask for.
        if not (fits and is_eager(maps) and maps.is_contiguous(memory_format=torch.channels_last)):
            return super().forward(maps)
        cells = maps.permute(0, 2, 3, 1).unflatten(2, (-1, side)).unflatten(1, (-1, side))
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        return product(cells.transpose(2, 3).flatten(3), weight, self.bias).permute(0, 3, 1, 2)


class Operator(nn.Module):
    """By an operator in C++.

    Args:
        plain: The module that it replaces, for calls that the operator does not serve.
    """

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain


class DeformableSampling(Operator):
    """Deformable attention's sampling in C++."""

    def forward(self, value: Tensor, offsets: Tensor, logits: Tensor, plan: SamplingPlan) -> Tensor:
        """See :class:`mmlape.layers.deformable.DeformableSampling`."""
        if not _serves(value):
            return self.plain(value, offsets, logits, plan)
        shapes = [side for shape in plan.shapes for side in shape]
        return deformable_sampling(value, offsets, logits, plan.reference_points, shapes)


class DTN(Operator):
    """DTN's normalisation in C++; masks take PyTorch's."""

    def forward(
        self,
        x: Tensor,
        P_y: Tensor,
        P_x: Tensor,
        mean_ratio: Tensor,
        var_ratio: Tensor,
        weight: Tensor,
        bias: Tensor,
        options: DTNOptions,
        mask: Tensor | None = None,
    ) -> Tensor:
        """See :class:`mmlape.norm.dtn_maps.PlainDTN`."""
        tensors = (x, P_y, P_x, mean_ratio, var_ratio, weight, bias)
        if mask is not None or not _serves(x):
            return self.plain(*tensors, options, mask)
        windows, eps, stabilize = options
        return dtn(*tensors, windows=(*windows.grid, windows.pool), eps=eps, stabilize=stabilize)


def _serves(tensor: Tensor) -> bool:
    """Whether operators are for this call: on a CPU (the model may have been moved), in eager mode or a graph of
    ``torch.compile``. Exported files, transforms and modes that count operators take PyTorch's own."""
    if not tensor.is_cpu or not is_there():
        return False
    return not is_exporting() if torch.compiler.is_compiling() else is_eager(tensor)
