"""Choosing boxes with results of a fixed shape, as files need them: what is missing has score 0."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from torch import Tensor
from torch.nn import functional
from torchvision.ops import nms, roi_align

Size = tuple[int, int]  # height and width of an image


class Boxes(NamedTuple):
    """Boxes found in a batch, best first.

    Attributes:
        boxes: ``(B, K, 4)``, x1, y1, x2, y2 in pixels of the input.
        scores: ``(B, K)``; 0 where there is nothing.
        labels: ``(B, K)``, int64.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` highest scores ``(B, count)`` and where they are, of ``(B, N)``, also of fewer: then 0, at 0."""
    padded = functional.pad(scores, (0, count))
    values, indices = padded.topk(count)
    return values, indices.masked_fill(indices >= scores.shape[1], 0)


def take(values: Tensor, indices: Tensor) -> Tensor:
    """Rows ``(B, K, ...)`` of ``(B, N, ...)`` at ``indices`` ``(B, K)``."""
    shape = (-1, -1, *values.shape[2:])
    index = indices.view(*indices.shape, *[1] * (values.dim() - 2)).expand(shape)
    return values.gather(1, index)


def sides_of(size: Size, like: Tensor) -> Tensor:
    """Width, height, width and height ``(4,)``, of the type and on the device of ``like``."""
    height, width = (torch.full((), side, dtype=like.dtype, device=like.device) for side in size)
    return torch.stack([width, height, width, height])


def of_queries(boxes: Tensor, scores: Tensor, count: int) -> Boxes:
    """The best pairs of a query and a class, of boxes ``(B, N, 4)`` and scores ``(B, N, classes)``."""
    classes = scores.shape[-1]
    chosen, indices = best(scores.flatten(1), count)
    cells = indices.div(classes, rounding_mode='floor')
    return Boxes(take(boxes, cells), chosen, indices % classes)


def suppress(
    boxes: Tensor, scores: Tensor, groups: Tensor, overlap: float, least: float = 0.0
) -> Tensor:
    """Non-maximum suppression within each group of each image.

    Args:
        boxes: ``(B, N, 4)``.
        scores: ``(B, N)``.
        groups: ``(B, N)``, such as labels: boxes of different ones do not suppress each other.
        overlap: Highest IoU of two boxes that are kept.
        least: Scores up to this are left out. Default 0.

    Returns:
        Scores ``(B, N)``, 0 where a box is not kept.
    """
    # Groups go side by side and images below each other, so that none overlap; MMCV moves groups along both axes.
    step = boxes.max() + 1
    rows = torch.arange(boxes.shape[0], device=boxes.device).unsqueeze(1).expand_as(groups)
    moved = boxes + (torch.stack([groups, rows], dim=-1) * step).repeat(1, 1, 2)
    flat = scores.flatten()
    count = flat.shape[0]
    candidates = (flat > least).nonzero().squeeze(1)
    # Two boxes far away, since torchvision tells the compiler that at least two remain.
    far = moved.new_tensor([[-20, -20, -19, -19], [-10, -10, -9, -9]])
    candidates = torch.cat([candidates, torch.arange(2, device=flat.device) + count])
    moved = torch.cat([moved.flatten(0, 1), far])
    flat = torch.cat([flat, flat.new_zeros(2)])
    kept = nms(moved[candidates], flat[candidates], overlap)
    keep = torch.zeros_like(flat).scatter(0, candidates[kept], 1.0)
    return scores * keep[:count].view_as(scores)


def overlap_of(settings: Any) -> float:
    """The IoU threshold of a ``test_cfg.nms``; ValueError for another kind than plain suppression."""
    settings = dict(settings or {})
    kind = settings.get('type', 'nms')
    if kind != 'nms' or settings.get('class_agnostic'):
        raise ValueError(f"test_cfg.nms must have type='nms' to be exported, got {settings}")
    return float(settings['iou_threshold'])


def keep(found: Boxes, settings: Any, least: float = 0.0) -> Boxes:
    """The best ``settings.max_per_img`` boxes after suppression by ``settings.nms``; ``least`` of :func:`suppress`."""
    scores = suppress(*found, overlap_of(settings.nms), least)
    scores, indices = best(scores, settings.max_per_img)
    return Boxes(take(found.boxes, indices), scores, take(found.labels, indices))


class RoIFeatures(SingleRoIExtractor):
    """MMDetection's extractor by torchvision's ``roi_align``, which ONNX knows."""

    def forward(
        self, feats: tuple[Tensor, ...], rois: Tensor, roi_scale_factor: float | None = None
    ) -> Tensor:
        """``(N, C, h, w)`` of the level that suits each of ``rois`` ``(N, 5)``: image, x1, y1, x2, y2."""
        levels = self.map_roi_levels(rois, len(feats))
        if roi_scale_factor is not None:
            rois = self.roi_rescale(rois, roi_scale_factor)
        height, width = self.roi_layers[0].output_size
        features = feats[0].new_zeros(rois.shape[0], feats[0].shape[1], height, width)
        for level, (layer, each) in enumerate(zip(self.roi_layers, feats, strict=True)):
            chosen = (levels == level).nonzero().squeeze(1)
            ratio = layer.sampling_ratio or -1
            part = roi_align(
                each, rois[chosen], (height, width), layer.spatial_scale, ratio, layer.aligned
            )
            features = features.index_copy(0, chosen, part)
        return features
