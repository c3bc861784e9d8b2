"""Deformable attention between tokens and a feature pyramid (ViT-Adapter, ICLR 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttention,
    ext_module,
    multi_scale_deformable_attn_pytorch,
)
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from mmlape.checks import check_positive_int
from mmlape.layout import cached
from mmlape.runtime.autocast import cast_once, without_autocast
from mmlape.runtime.tracing import is_eager, is_exporting

from .basic import DropPath, PatchConv2d, StridedConv2d, build_map_norm, fast_memory_format
from .mlp import ConvMlp

Shapes = tuple[tuple[int, int], ...]


class SamplingPlan(NamedTuple):
    """Where queries sit and how the maps that they sample are laid out. It depends on grids alone.

    Attributes:
        reference_points: ``(1, num_queries, 1, 1, 1, 2)``, (x, y) of the queries in [0, 1], float32; None for finished
            locations.
        shapes: (height, width) of each sampled level, as Python integers; None where only tensors hold them.
        sizes: ``(num_levels, 1, 2)``, (width, height) of each level, float32.
        shapes_tensor: ``(num_levels, 2)``, ``shapes`` on the device, int64: what the CUDA operator reads.
        level_starts: ``(num_levels,)``, index of each level's first token, int64.
    """

    reference_points: Tensor | None
    shapes: Shapes | None
    sizes: Tensor
    shapes_tensor: Tensor
    level_starts: Tensor


@cached
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
    points = points.view(1, -1, 1, 1, 1, 2).to(device)
    return plan_of_maps(value_shapes, device)._replace(reference_points=points)


def plan_of_maps(value_shapes: Shapes, device: torch.device) -> SamplingPlan:
    """A plan without reference points, see :func:`sampling_plan`."""
    shapes = torch.tensor(value_shapes, dtype=torch.int64)
    ends = shapes.prod(dim=1).cumsum(dim=0)
    return SamplingPlan(
        reference_points=None,
        shapes=value_shapes,
        sizes=shapes.flip(1).unsqueeze(1).float().to(device),
        shapes_tensor=shapes.to(device),
        level_starts=torch.cat([ends.new_zeros(1), ends[:-1]]).to(device),
    )


def _cell_centres(shape: tuple[int, int]) -> Tensor:
    """(x, y) of a map's cell centres in [0, 1], raster order, ``(H * W, 2)``."""
    ys, xs = ((torch.arange(side, dtype=torch.float32) + 0.5) / side for side in shape)
    return torch.stack(torch.meshgrid(xs, ys, indexing='xy'), dim=-1).flatten(0, 1)


class DeformableSampling(nn.Module):
    """Bilinear samples of maps around reference points, weighted by a softmax (Deformable DETR, ICLR 2021, eq. 3).

    By MMCV's operator on a GPU, elsewhere by its PyTorch form; by gathers where sizes of maps are tensors, or with
    ``gathers``, as files have it: runtimes compute ONNX's ``GridSample`` wrongly. It computes in float32 at least.
    """

    gathers = False

    def forward(self, value: Tensor, offsets: Tensor, logits: Tensor, plan: SamplingPlan) -> Tensor:
        """Sample.

        Args:
            value: ``(B, sum of H * W over levels, heads, D)``.
            offsets: ``(B, N, heads, levels, points, 2)``, (x, y) in cells of the level, from the reference points; if
                the plan has none, finished locations in units of the map.
            logits: ``(B, N, heads, levels, points)``; the softmax runs over levels and points.
            plan: From :func:`sampling_plan`, or one of maps alone.

        Returns:
            ``(B, N, heads * D)``.
        """
        dtype = torch.promote_types(value.dtype, torch.float32)
        with without_autocast(value.device):
            weights = logits.flatten(-2).softmax(dim=-1, dtype=dtype).view(logits.shape)
            locations = offsets.to(dtype)
            if plan.reference_points is not None:
                locations = plan.reference_points + locations / plan.sizes
            values = value.to(dtype)
            if self.gathers:
                sampled = _gathered(values, locations, weights, plan)
            elif value.is_cuda and not is_exporting():  # it takes float32 and float64 alone
                sampled = _sampled_on_gpu(values, locations, weights, plan)
            elif plan.shapes is not None:
                sampled = multi_scale_deformable_attn_pytorch(
                    values, plan.shapes, locations, weights
                )
            else:
                sampled = _gathered(values, locations, weights, plan)
            return sampled.to(value.dtype)


_operator = partial(torch.library.custom_op, mutates_args=())
_OF_GPU = 'Tensor value, Tensor shapes, Tensor level_starts, Tensor locations, Tensor weights'


def _sampled_on_gpu(
    values: Tensor, locations: Tensor, weights: Tensor, plan: SamplingPlan
) -> Tensor:
    """Sample with MMCV's kernels."""
    maps = plan.shapes_tensor, plan.level_starts
    arguments = values.contiguous(), *maps, locations.contiguous(), weights.contiguous()
    # An operator can be part of a graph, a function takes less time.
    return (_Sampled.apply if is_eager(values) else _in_graphs)(*arguments)


class _Sampled(Function):
    """MMCV's function, but with all gradients filled with zeros in one call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        # The step must divide the batch.
        return ext_module.ms_deform_attn_forward(*inputs, im2col_step=len(inputs[0]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, _shapes, _level_starts, locations, weights = ctx.saved_tensors
        needed = (value, locations, weights)
        sizes = [each.numel() for each in needed]
        parts = zip(value.new_zeros(sum(sizes)).split(sizes), needed)
        found = [part.view_as(each) for part, each in parts]
        _add_gradients(grad, ctx.saved_tensors, found)
        return found[0], None, None, *found[1:]


def _add_gradients(grad: Tensor, inputs: Sequence[Tensor], to: Sequence[Tensor]) -> None:
    """Add the gradients of values, locations and weights to ``to``."""
    ext_module.ms_deform_attn_backward(*inputs, grad.contiguous(), *to, im2col_step=len(inputs[0]))


@_operator('mmlape::deformable_sampling_on_gpu', schema=f'({_OF_GPU}) -> Tensor')
def _in_graphs(*inputs: Tensor) -> Tensor:
    return ext_module.ms_deform_attn_forward(*inputs, im2col_step=len(inputs[0]))


@_operator(
    'mmlape::deformable_sampling_on_gpu_backward',
    schema=f'(Tensor grad, {_OF_GPU}) -> (Tensor, Tensor, Tensor)',
)
def _gradients_on_gpu(grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Compute the gradients of values, locations and weights."""
    value, _shapes, _level_starts, locations, weights = inputs
    found = tuple(map(torch.zeros_like, (value, locations, weights)))  # none may be a view
    _add_gradients(grad, inputs, found)
    return found


@_in_graphs.register_fake
def _(value: Tensor, *others: Tensor) -> Tensor:
    return value.new_empty(value.shape[0], others[2].shape[1], value.shape[2] * value.shape[3])


@_gradients_on_gpu.register_fake
def _(_grad: Tensor, value: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return tuple(map(torch.empty_like, (value, *others[2:])))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple:
    to_value, *rest = _gradients_on_gpu(grad, *ctx.saved_tensors)
    return to_value, None, None, *rest


_in_graphs.register_autograd(_gradients, setup_context=_save)


def _gathered(value: Tensor, locations: Tensor, weights: Tensor, plan: SamplingPlan) -> Tensor:
    """Samples without a Python integer of the maps' sizes. It needs four times the memory of the samples."""
    # (levels, 1, 1, 2), beside locations (B, N, heads, levels, points, corners, 2): width, height
    sides, sizes = (
        each.unsqueeze(-2) for each in (plan.shapes_tensor.flip(1)[:, None], plan.sizes)
    )
    # A cell further is outside too, and far away is no integer.
    points = locations.unsqueeze(-2) * sizes - 0.5
    points = torch.minimum(points.clamp(min=-2), sizes + 1)
    first = points.floor()
    corners = torch.arange(4, device=value.device)
    steps = torch.stack([corners % 2, corners // 2], dim=-1)
    cells = first.long() + steps
    inside = ((cells >= 0) & (cells < sides)).all(dim=-1)
    near = (points - first - (1 - steps)).abs()  # 1 - distance along each axis
    shares = near.prod(dim=-1) * inside * weights.unsqueeze(-1)
    x, y = torch.minimum(cells.clamp(min=0), sides - 1).unbind(-1)
    index = plan.level_starts[:, None, None] + y * sides[..., 0] + x
    index, shares = (each.transpose(1, 2).flatten(3) for each in (index, shares))
    rows = value.transpose(1, 2).gather(
        2, index.flatten(2).unsqueeze(-1).expand(-1, -1, -1, value.shape[-1])
    )
    sampled = shares.unsqueeze(-2) @ rows.unflatten(2, (-1, shares.shape[-1]))
    return sampled.squeeze(-2).transpose(1, 2).flatten(2)


class DeformableAttention(MultiScaleDeformableAttention):
    """MMCV's ``MultiScaleDeformableAttention`` (Deformable DETR, ICLR 2021, eq. 3) as ViT-Adapter uses it.

    Parameters and initialisation are MMCV's. The forward pass differs: batch first, no dropout, **no residual
    added**, no device synchronisation (shapes are Python integers), and the sampling runs in float32 under autocast,
    as published. ``mmlape.cpu.optimize`` replaces the sampling by an operator in C++.

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
        self.sampling = DeformableSampling()

    def forward(self, query: Tensor, value: Tensor, plan: SamplingPlan) -> Tensor:
        """Queries ``(B, N, C)`` sample values ``(B, sum of H * W over levels, C)`` around their reference points, by a
        :func:`sampling_plan`; returns ``(B, N, C)``."""
        heads, levels, points = self.num_heads, self.num_levels, self.num_points
        query = cast_once(query)
        offsets = self.sampling_offsets(query).unflatten(-1, (heads, levels, points, 2))
        logits = self.attention_weights(query).unflatten(-1, (heads, levels, points))
        value = self.value_proj(value).unflatten(-1, (heads, -1))
        return self.output_proj(self.sampling(value, offsets, logits, plan))


class _Attending(nn.Module):
    """Normalises queries and features and lets the queries sample the features."""

    def __init__(self, embed_dims: int, num_levels: int, deform: dict) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.feat_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = DeformableAttention(embed_dims, num_levels=num_levels, **deform)

    def attend(self, query: Tensor, feature: Tensor, plan: SamplingPlan) -> Tensor:
        return self.attn(self.query_norm(query), self.feat_norm(feature), plan)


class Injector(_Attending):
    """Adds what the pyramid knows to the ViT tokens, scaled by a vector that starts at zero (eq. 1).

    ``deform`` has options of :class:`DeformableAttention`: ``num_heads``, ``num_points``, ``value_proj_ratio``.
    """

    def __init__(self, embed_dims: int, deform: dict) -> None:
        super().__init__(embed_dims, 3, deform)
        self.gamma = nn.Parameter(torch.zeros(embed_dims))

    def forward(self, tokens: Tensor, pyramid: Tensor, plan: SamplingPlan) -> Tensor:
        """``(B, N, C)`` tokens sample the pyramid ``(B, M, C)``; returns ``(B, N, C)``."""
        return tokens + self.gamma * self.attend(tokens, pyramid, plan)


class Extractor(_Attending):
    """Lets the pyramid sample the ViT tokens, then mixes it by a convolutional feed-forward network (eq. 2, 3).

    Args:
        embed_dims, deform: As in :class:`Injector`.
        cffn_ratio: Hidden channels of the feed-forward network in units of ``C``. Default 0.25.
        drop_path_rate: Stochastic depth of the feed-forward branch. Default 0.
    """

    def __init__(
        self,
        embed_dims: int,
        deform: dict,
        cffn_ratio: float = 0.25,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(embed_dims, 1, deform)
        self.ffn = ConvMlp(embed_dims, int(embed_dims * cffn_ratio))
        self.ffn_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()

    def forward(
        self, pyramid: Tensor, tokens: Tensor, plan: SamplingPlan, shapes: Shapes
    ) -> Tensor:
        """Pyramid ``(B, M, C)`` with level ``shapes`` samples tokens ``(B, N, C)``; returns ``(B, M, C)``."""
        pyramid = pyramid + self.attend(pyramid, tokens, plan)
        return pyramid + self.drop_path(self.ffn(self.ffn_norm(pyramid), shapes))


class Interaction(nn.Module):
    """One exchange: inject into the tokens, run some ViT layers, extract back into the pyramid.

    Args:
        embed_dims, deform, cffn_ratio, drop_path_rate: As in :class:`Extractor`.
        num_extra_extractors: Further extractors after the first (two after the last interaction). Default 0.
    """

    def __init__(
        self,
        embed_dims: int,
        deform: dict,
        num_extra_extractors: int = 0,
        cffn_ratio: float = 0.25,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.injector = Injector(embed_dims, deform)
        options = (embed_dims, deform, cffn_ratio, drop_path_rate)
        self.extractor = Extractor(*options)
        self.extra_extractors = nn.ModuleList(
            Extractor(*options) for _ in range(num_extra_extractors)
        )

    def extractors(self) -> list[nn.Module]:
        """All extractors in the order in which they run."""
        return [self.extractor, *self.extra_extractors]


class SpatialPrior(nn.Module):
    """Spatial prior module (ViT-Adapter, ICLR 2023, section 3.2).

    A ResNet-like stem to stride 4 and three strided convolutions to strides 8, 16 and 32, each projected to the ViT's
    channels.

    Args:
        embed_dims: Channels ``C`` of the ViT.
        inplanes: Channels of the stem. Default 64.
        norm_cfg: Batch norm of the convolutions, for MMCV's ``build_norm_layer``. Default ``dict(type='BN')``.
        out_indices: Ascending indices of the maps to project, 0 for stride 4 to 3 for stride 32; what only other maps
            need is not built. Default all.
        in_channels: Channels of the image. Default 3.
    """

    def __init__(
        self,
        embed_dims: int,
        inplanes: int = 64,
        norm_cfg: dict | None = None,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        check_positive_int('conv_inplanes', inplanes)
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        self.stem = nn.Sequential(
            *_conv(in_channels, inplanes, 2, norm_cfg),
            *_conv(inplanes, inplanes, 1, norm_cfg),
            *_conv(inplanes, inplanes, 1, norm_cfg),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.out_indices = tuple(out_indices)
        widths = [inplanes * factor for factor in (1, 2, 4, 4)]
        for index in range(1, self.out_indices[-1] + 1):
            conv = _conv(widths[index - 1], widths[index], 2, norm_cfg)
            self.add_module(f'conv{index + 1}', nn.Sequential(*conv))
        for index in self.out_indices:
            self.add_module(f'fc{index + 1}', PatchConv2d(widths[index], embed_dims, 1))

    def forward(self, image: Tensor) -> list[Tensor]:
        """``(B, in_channels, H, W)`` to a map ``(B, C, ceil(H / s), ceil(W / s))`` per entry of ``out_indices``, s = 4
        to 32."""
        maps = [self.stem(fast_memory_format(image, self.training))]
        for index in range(1, self.out_indices[-1] + 1):
            maps.append(getattr(self, f'conv{index + 1}')(maps[-1]))
        return [getattr(self, f'fc{index + 1}')(maps[index]) for index in self.out_indices]


def _conv(in_channels: int, out_channels: int, stride: int, norm_cfg: dict) -> list[nn.Module]:
    return [
        StridedConv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
        build_map_norm(norm_cfg, out_channels),
        nn.ReLU(inplace=True),
    ]
