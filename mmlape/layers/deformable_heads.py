"""Deformable attention of upstream's pixel decoders and DETR heads, by our sampling."""

from __future__ import annotations

from typing import Any

import torch
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttention
from mmengine.utils import deprecated_api_warning
from torch import Tensor, nn

from mmlape.runtime.autocast import without_autocast
from mmlape.runtime.private import has_hooks
from mmlape.runtime.submodules import as_class, replace_submodules
from mmlape.runtime.tracing import is_tracing

from .deformable import DeformableSampling, SamplingPlan, plan_of_maps

# Where the values of a tensor cannot be read, or reading waits for the device.
_UNREAD = ('cuda', 'meta')


class HeadDeformableAttention(MultiScaleDeformableAttention):
    """MMCV's ``MultiScaleDeformableAttention`` (Deformable DETR, ICLR 2021, eq. 3) with our sampling.

    Constructor, parameters and results are MMCV's. It samples in float32 under autocast; on GPUs by MMCV's operator in
    bfloat16 too, for any batch size (``im2col_step`` has no effect) and without waiting for the device; on CPUs by an
    operator in C++ after ``mmlape.cpu.optimize``. ``torch.export`` makes a graph for any sizes of maps. Heads build
    MMCV's class themselves: :func:`replace_deformable_attention` puts this one into a model.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sampling = DeformableSampling()

    @classmethod
    def of(cls, plain: MultiScaleDeformableAttention) -> HeadDeformableAttention:
        """Make a module with the layers of ``plain``, the same objects."""
        made: HeadDeformableAttention = as_class(plain, cls)
        made._modules = {**plain._modules, 'sampling': DeformableSampling().train(plain.training)}
        return made

    @deprecated_api_warning({'residual': 'identity'}, cls_name='MultiScaleDeformableAttention')
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        identity: Tensor | None = None,
        query_pos: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        reference_points: Tensor | None = None,
        spatial_shapes: Tensor | None = None,
        level_start_index: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Sample values around reference points, and add the result to ``identity``.

        Args:
            query: ``(B, N, C)``, or ``(N, B, C)`` without ``batch_first``.
            key: Has no effect, as upstream.
            value: ``(B, sum of H * W over levels, C)``, or likewise. Default the queries.
            identity: Added to the result. Default the queries.
            query_pos: Added to the queries. Default None.
            key_padding_mask: ``(B, sum of H * W)``, boolean: values that are zero. Default None.
            reference_points: ``(B, N, levels, 2)``, (x, y) in [0, 1]; or ``(B, N, levels, 4)`` with width and height,
                which offsets are then relative to.
            spatial_shapes: ``(levels, 2)``, (height, width) of each level; or as many pairs of integers.
            level_start_index: ``(levels,)``, index of each level's first value. Default from the shapes.
            kwargs: Have no effect, as upstream.

        Returns:
            The shape of ``query``.

        Raises:
            ValueError: If there are no reference points or shapes, or points have neither 2 nor 4 coordinates.
        """
        if reference_points is None or spatial_shapes is None:
            raise ValueError('reference_points and spatial_shapes must be given, got None')
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        if not self.batch_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        heads, levels, points = self.num_heads, self.num_levels, self.num_points
        offsets = self.sampling_offsets(query).unflatten(-1, (heads, levels, points, 2))
        logits = self.attention_weights(query).unflatten(-1, (heads, levels, points))
        value = self.value_proj(value)
        if key_padding_mask is not None:
            value = value.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        plan = _plan(spatial_shapes, level_start_index, value)
        sampled = self.sampling(
            value.unflatten(-1, (heads, -1)),
            _locations(offsets, reference_points, plan),
            logits,
            plan,
        )
        output = self.output_proj(sampled)
        if not self.batch_first:
            output = output.transpose(0, 1)
        return self.dropout(output) + identity


def _plan(
    shapes: Tensor | list[tuple[int, int]], level_starts: Tensor | None, value: Tensor
) -> SamplingPlan:
    """Make the plan of maps without reference points. Sizes become Python integers where that is free."""
    if not isinstance(shapes, Tensor):
        return plan_of_maps(tuple(shapes), value.device)
    if level_starts is None:
        ends = shapes.prod(dim=1).cumsum(dim=0)
        level_starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    is_read = not is_tracing() and type(shapes) is Tensor and shapes.device.type not in _UNREAD
    return SamplingPlan(
        reference_points=None,
        shapes=tuple(map(tuple, shapes.tolist())) if is_read else None,
        sizes=shapes.flip(1).unsqueeze(1).to(torch.promote_types(value.dtype, torch.float32)),
        shapes_tensor=shapes,
        level_starts=level_starts,
    )


def _locations(offsets: Tensor, references: Tensor, plan: SamplingPlan) -> Tensor:
    """``(B, N, heads, levels, points, 2)`` in units of the maps (Deformable DETR, appendix A.4 for boxes)."""
    references = references[:, :, None, :, None].to(plan.sizes.dtype)
    offsets = offsets.to(plan.sizes.dtype)
    with without_autocast(offsets.device):
        if references.shape[-1] == 2:
            return references + offsets / plan.sizes
        if references.shape[-1] == 4:
            centres, sides = references.split(2, dim=-1)
            return centres + offsets / offsets.shape[-2] * sides * 0.5
    raise ValueError(
        f'reference_points must have 2 or 4 coordinates, got {references.shape[-1]} in their last axis'
    )


def replace_deformable_attention(model: nn.Module) -> nn.Module:
    """Replace MMCV's ``MultiScaleDeformableAttention`` in pixel decoders and DETR heads by ours, in place.

    Parameters stay the same objects under the same names. Modules with hooks or a ``forward`` of their own are left
    alone.

    Args:
        model: Any module, before or after weights are loaded, the optimizer is built, or the model is wrapped.

    Returns:
        The model; another object only where it is itself such a module.
    """

    def replacement(module: nn.Module) -> nn.Module | None:
        if type(module) is not MultiScaleDeformableAttention:
            return None
        if has_hooks(module) or 'forward' in vars(module):
            return None
        return HeadDeformableAttention.of(module)

    return replace_submodules(model, replacement)
