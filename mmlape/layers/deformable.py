"""Multi-scale deformable attention on MMCV's operator, with its geometry prepared once per grid."""

from __future__ import annotations

from typing import NamedTuple

import torch
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttention,
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from torch import Tensor

from mmlape.kept import kept
from mmlape.ops import deformable_sampling, is_served

from .linear import make_faster

Shapes = tuple[tuple[int, int], ...]


class SamplingPlan(NamedTuple):
    """Where queries sit and how the maps that they sample are laid out. It depends on grids alone.

    Attributes:
        reference_points: ``(1, num_queries, 1, 1, 1, 2)``, (x, y) of the queries in [0, 1], float32.
        shapes: (height, width) of each sampled level, as Python integers.
        sizes: ``(num_levels, 1, 2)``, (width, height) of each level, float32.
        shapes_tensor: ``(num_levels, 2)``, ``shapes`` on the device, int64: what the CUDA operator reads.
        level_starts: ``(num_levels,)``, index of each level's first token, int64.
    """

    reference_points: Tensor
    shapes: Shapes
    sizes: Tensor
    shapes_tensor: Tensor
    level_starts: Tensor


@kept
def sampling_plan(
    query_shapes: Shapes,
    value_shapes: Shapes,
    device: torch.device,
    scale: tuple[float, float] = (1.0, 1.0),
) -> SamplingPlan:
    """Plan for queries at the cell centres of ``query_shapes`` that sample ``value_shapes``.

    Args:
        query_shapes: (height, width) of each map of queries, in the order of the query tokens.
        value_shapes: (height, width) of each sampled map, in the order of the value tokens.
        device: Where the tensors live.
        scale: Height and width of the image that the queries cover in units of the image that the values cover; both
            begin at the top left. Default the same image.
    """
    points = torch.cat([_cell_centres(shape) for shape in query_shapes])
    points = points * points.new_tensor(scale[::-1])
    shapes = torch.tensor(value_shapes, dtype=torch.int64)
    ends = shapes.prod(dim=1).cumsum(dim=0)
    return SamplingPlan(
        reference_points=points.view(1, -1, 1, 1, 1, 2).to(device),
        shapes=value_shapes,
        sizes=shapes.flip(1).unsqueeze(1).float().to(device),
        shapes_tensor=shapes.to(device),
        level_starts=torch.cat([ends.new_zeros(1), ends[:-1]]).to(device),
    )


def _cell_centres(shape: tuple[int, int]) -> Tensor:
    """(x, y) of a map's cell centres in [0, 1], raster order, ``(H * W, 2)``."""
    ys, xs = ((torch.arange(side, dtype=torch.float32) + 0.5) / side for side in shape)
    return torch.stack(torch.meshgrid(xs, ys, indexing='xy'), dim=-1).flatten(0, 1)


class DeformableAttention(MultiScaleDeformableAttention):
    """MMCV's ``MultiScaleDeformableAttention`` (Deformable DETR, ICLR 2021, eq. 3) as ViT-Adapter uses it.

    Parameters and initialisation are MMCV's. The forward pass differs: batch first, no dropout, **no residual
    added**, no device synchronisation (shapes are Python integers), and the sampling runs in float32 under autocast,
    as published; on a CPU it is an operator of ours.

    Args:
        embed_dims: Channels ``C`` of queries and values. Default 256.
        num_heads: Heads; must divide ``embed_dims``. Default 8.
        num_levels: Maps that are sampled. Default 4.
        num_points: Samples per query, head and level. Default 4.
        value_proj_ratio: Channels of projected values in units of ``C`` (ViT-Adapter's ``deform_ratio``). Default 1.

    Raises:
        ValueError: If there are no projected channels, or no multiple of ``num_heads``.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        value_proj_ratio: float = 1.0,
    ) -> None:
        projected = int(embed_dims * value_proj_ratio)
        if not projected or projected % num_heads or embed_dims % num_heads:
            raise ValueError(
                f'the number of deformable heads must divide the channels, got {num_heads} heads for '
                f'{embed_dims} channels and a ratio of {value_proj_ratio}'
            )
        super().__init__(
            embed_dims,
            num_heads,
            num_levels,
            num_points,
            dropout=0.0,
            batch_first=True,
            value_proj_ratio=value_proj_ratio,
        )
        make_faster(self)

    def forward(self, query: Tensor, value: Tensor, plan: SamplingPlan) -> Tensor:
        """Sample ``value`` around each query's reference point.

        Args:
            query: ``(B, num_queries, C)``.
            value: ``(B, sum of H * W over levels, C)``.
            plan: From :func:`sampling_plan`.

        Returns:
            ``(B, num_queries, C)``.
        """
        heads, levels, points = self.num_heads, self.num_levels, self.num_points
        offsets = self.sampling_offsets(query).unflatten(-1, (heads, levels, points, 2))
        logits = self.attention_weights(query).unflatten(-1, (heads, levels, points))
        value = self.value_proj(value).unflatten(-1, (heads, -1))
        return self.output_proj(_sample(value, offsets, logits, plan))


def _sample(value: Tensor, offsets: Tensor, logits: Tensor, plan: SamplingPlan) -> Tensor:
    """Our operator on CPUs, where it can be used, else :func:`decomposed`; it computes in float32 at least."""
    if is_served(value):
        shapes = [side for shape in plan.shapes for side in shape]
        return deformable_sampling(value, offsets, logits, plan.reference_points, shapes)
    with torch.autocast(value.device.type, enabled=False):
        return decomposed(value, offsets, logits, plan)


def decomposed(value: Tensor, offsets: Tensor, logits: Tensor, plan: SamplingPlan) -> Tensor:
    """What :func:`mmlape.ops.deformable_sampling` computes, by MMCV's operator for GPUs (which takes float32 and
    float64 alone), elsewhere by its PyTorch form."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    weights = logits.flatten(-2).softmax(dim=-1, dtype=dtype).view(logits.shape)
    locations = plan.reference_points + offsets.to(dtype) / plan.sizes
    values = value.to(dtype)
    if not value.is_cuda:
        sampled = multi_scale_deformable_attn_pytorch(values, plan.shapes, locations, weights)
    else:
        sampled = MultiScaleDeformableAttnFunction.apply(
            values.contiguous(),
            plan.shapes_tensor,
            plan.level_starts,
            locations.contiguous(),
            weights.contiguous(),
            value.shape[0],  # im2col_step: it must divide the batch
        )
    return sampled.to(value.dtype)
