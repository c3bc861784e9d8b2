"""Detectors as networks with one answer: images in; boxes, scores, labels and masks out, in fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from mmdet.models.dense_heads import GFLHead
from mmdet.models.roi_heads import CascadeRoIHead, HybridTaskCascadeRoIHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from torch import Tensor, nn

from mmlape.runtime.submodules import as_class, replace_submodules

from .selection import Boxes, RoIFeatures, Size, best, keep, of_queries, overlap_of, sides_of, take


class DenseDetector(nn.Module):
    """RetinaNet, ATSS, GFL and FCOS: every cell of the pyramid predicts."""

    outputs = ('boxes', 'scores', 'labels')

    def __init__(self, model: Any) -> None:
        super().__init__()
        overlap_of(model.test_cfg.nms)
        self.model: Any = model

    def forward(self, image: Tensor, size: Size) -> tuple[Tensor, ...]:
        """Boxes ``(B, K, 4)``, scores and labels ``(B, K)`` of an image ``(B, 3, H, W)``."""
        head, settings = self.model.bbox_head, self.model.test_cfg
        parts = []
        for scores, deltas, factors, priors in _levels(head, head(self.model.extract_feat(image))):
            scores = scores if head.use_sigmoid_cls else scores[..., :-1]
            classes = scores.shape[-1]
            flat = scores.flatten(1)
            flat = flat * (flat > settings.score_thr)
            chosen, indices = best(flat, settings.nms_pre)
            cells = indices.div(classes, rounding_mode='floor')
            boxes = _decode(head, take(deltas, cells), priors[cells], size)
            if factors is not None:
                chosen = chosen * factors.gather(1, cells)
            parts.append(Boxes(boxes, chosen, indices % classes))
        return keep(_join_levels(parts, settings), settings)


def _levels(head: Any, outputs: tuple) -> Iterator[tuple]:
    """Yield for each level scores ``(B, N, classes)``, encoded boxes ``(B, N, D)``, factors of scores ``(B, N)`` or
    None, and priors ``(N, ...)``."""
    generator = head.prior_generator
    sizes = [each.shape[-2:] for each in outputs[0]]
    priors = generator.grid_priors(sizes, device=outputs[0][0].device)
    for level, logits in enumerate(outputs[0]):
        logits, deltas, *factors = (
            each[level].permute(0, 2, 3, 1).reshape(logits.shape[0], priors[level].shape[0], -1)
            for each in outputs
        )
        if isinstance(head, GFLHead):
            deltas = _distances(deltas, head.reg_max) * generator.strides[level][0]
        scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(dim=-1)
        yield scores, deltas, factors[0].squeeze(-1).sigmoid() if factors else None, priors[level]


def _distances(logits: Tensor, last: int) -> Tensor:
    """Means ``(B, N, 4)`` of distributions over 0 to ``last`` (GFL, NeurIPS 2020, eq. 4); the exporter fails on
    MMDetection's, which casts a buffer."""
    shares = logits.unflatten(-1, (4, last + 1)).softmax(dim=-1)
    return shares @ torch.arange(last + 1, dtype=shares.dtype, device=shares.device)


def _decode(head: Any, deltas: Tensor, priors: Tensor, size: Size) -> Tensor:
    """Boxes ``(B, N, 4)`` within the image."""
    shape = deltas.shape[:2]
    deltas, priors = deltas.flatten(0, 1), priors.flatten(0, 1)
    if isinstance(head, GFLHead):
        priors = head.anchor_center(priors)
    return head.bbox_coder.decode(priors, deltas, max_shape=size).view(*shape, 4)


def _join_levels(parts: list[Boxes], settings: Any) -> Boxes:
    """Join what is found on all levels; scores of boxes not larger than ``settings.min_bbox_size`` become 0."""
    found = Boxes(*(torch.cat(each, dim=1) for each in zip(*parts, strict=True)))
    least = settings.get('min_bbox_size', -1)
    if least < 0:
        return found
    sides = found.boxes[..., 2:] - found.boxes[..., :2]
    return found._replace(scores=found.scores * (sides > least).all(dim=-1))


class TwoStageDetector(nn.Module):
    """Faster, Mask and Cascade R-CNN, and HTC: proposals first; masks ``(B, K, h, w)`` of boxes are probabilities."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        settings = model.roi_head.test_cfg
        overlap_of(settings.nms)
        overlap_of(model.rpn_head.test_cfg.nms)
        if not model.rpn_head.use_sigmoid_cls:
            raise ValueError('rpn_head.loss_cls must have use_sigmoid=True to be exported')
        self.model: Any = _with_onnx_features(model)
        with_mask = model.roi_head.with_mask
        self.outputs = ('boxes', 'scores', 'labels', *(('masks',) if with_mask else ()))

    def forward(self, image: Tensor, size: Size) -> tuple[Tensor, ...]:
        """Boxes ``(B, K, 4)``, scores and labels ``(B, K)``, masks of an image ``(B, 3, H, W)``."""
        maps = self.model.extract_feat(image)
        head = self.model.roi_head
        semantic = head.semantic_head(maps)[1] if getattr(head, 'with_semantic', False) else None
        options = {} if semantic is None else dict(semantic_feat=semantic)
        proposals, valid = self._proposals(maps, size)
        rois = _rois(proposals)
        if isinstance(head, CascadeRoIHead):
            rois, logits, deltas = self._refined(maps, rois, size, options)
            last = head.bbox_head[-1]
        else:
            last, found = head.bbox_head, head._bbox_forward(maps, rois)
            logits, deltas = found['cls_score'], found['bbox_pred']
        count = valid.shape
        scores = logits.softmax(dim=-1)[:, :-1].view(*count, -1) * valid.unsqueeze(-1)
        classes = scores.shape[-1]
        if last.reg_class_agnostic:
            boxes = last.bbox_coder.decode(rois[:, 1:], deltas, max_shape=size)
            boxes = boxes.unsqueeze(1).expand(-1, classes, -1)
        else:
            repeated = rois[:, 1:].repeat_interleave(classes, dim=0)
            boxes = last.bbox_coder.decode(repeated, deltas.view(-1, 4), max_shape=size)
        labels = torch.arange(classes, device=scores.device).expand(scores.shape)
        found = Boxes(boxes.reshape(image.shape[0], -1, 4), scores.flatten(1), labels.flatten(1))
        found = keep(found, head.test_cfg, head.test_cfg.score_thr)
        return (*found, *self._masks(maps, found, options))

    def _proposals(self, maps: tuple[Tensor, ...], size: Size) -> tuple[Tensor, Tensor]:
        """Boxes ``(B, N, 4)``, and whether they are any ``(B, N)``."""
        head, settings = self.model.rpn_head, self.model.rpn_head.test_cfg
        parts = []
        for level, (scores, deltas, _, priors) in enumerate(_levels(head, head(maps))):
            chosen, indices = best(scores.squeeze(-1), settings.nms_pre)
            boxes = _decode(head, take(deltas, indices), priors[indices], size)
            parts.append(Boxes(boxes, chosen, torch.full_like(indices, level)))
        found = keep(_join_levels(parts, settings), settings)
        return found.boxes, found.scores > 0

    def _refined(
        self, maps: tuple[Tensor, ...], rois: Tensor, size: Size, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes of the last stage, mean logits of all stages, and what decodes the boxes further."""
        head, logits = self.model.roi_head, []
        for stage, each in enumerate(head.bbox_head):
            found = head._bbox_forward(stage=stage, x=maps, rois=rois, **options)
            logits.append(found['cls_score'])
            if stage < head.num_stages - 1:
                label = logits[-1][:, :-1].argmax(dim=1)
                boxes = each.regress_by_class(
                    rois[:, 1:], label, found['bbox_pred'], dict(img_shape=size)
                )
                rois = torch.cat([rois[:, :1], boxes], dim=1)
        return rois, sum(logits[1:], logits[0]) / len(logits), found['bbox_pred']

    def _masks(
        self, maps: tuple[Tensor, ...], found: Boxes, options: dict[str, Any]
    ) -> list[Tensor]:
        """Probabilities within the boxes, ``(B, K, h, w)``; nothing without a mask head."""
        head, rois = self.model.roi_head, _rois(found.boxes)
        if not head.with_mask:
            return []
        if isinstance(head, HybridTaskCascadeRoIHead):
            stages = head._mask_forward(-1, maps, rois, training=False, **options)['mask_preds']
        elif isinstance(head, CascadeRoIHead):
            stages = [
                head._mask_forward(stage, maps, rois)['mask_preds']
                for stage in range(head.num_stages)
            ]
        else:
            stages = [head._mask_forward(maps, rois)['mask_preds']]
        masks = sum(each.sigmoid() for each in stages) / len(stages)
        index = found.labels.flatten()
        if masks.shape[1] == 1:  # the same for all classes
            index = torch.zeros_like(index)
        masks = masks[torch.arange(masks.shape[0], device=masks.device), index]
        return [masks.unflatten(0, found.labels.shape)]


def _rois(boxes: Tensor) -> Tensor:
    """Boxes ``(B, N, 4)`` as ``(B * N, 5)``, with the image's number first."""
    number = torch.arange(boxes.shape[0], device=boxes.device, dtype=boxes.dtype).view(-1, 1, 1)
    return torch.cat([number.expand(-1, boxes.shape[1], -1), boxes], dim=-1).flatten(0, 1)


def _with_onnx_features(model: nn.Module) -> nn.Module:
    return replace_submodules(
        model,
        lambda each: as_class(each, RoIFeatures) if type(each) is SingleRoIExtractor else None,
    )


class SparseDetector(nn.Module):
    """Sparse R-CNN: learned proposals, refined stage by stage; nothing is suppressed."""

    outputs = ('boxes', 'scores', 'labels')

    def __init__(self, model: Any) -> None:
        super().__init__()
        if model.roi_head.with_mask:
            raise ValueError('Sparse R-CNN with a mask head cannot be exported')
        self.model: Any = _with_onnx_features(model)

    def forward(self, image: Tensor, size: Size) -> tuple[Tensor, ...]:
        """Boxes ``(B, K, 4)``, scores and labels ``(B, K)`` of an image ``(B, 3, H, W)``."""
        maps, first, head = self.model.extract_feat(image), self.model.rpn_head, self.model.roi_head
        boxes = bbox_cxcywh_to_xyxy(first.init_proposal_bboxes.weight) * sides_of(size, image)
        boxes = boxes.expand(image.shape[0], -1, -1)
        objects = first.init_proposal_features.weight.expand(image.shape[0], -1, -1)
        for extractor, stage in zip(head.bbox_roi_extractor, head.bbox_head, strict=True):
            features = extractor(maps[: extractor.num_inputs], _rois(boxes))
            logits, deltas, objects, _ = stage(features, objects)
            decoded = stage.bbox_coder.decode(
                boxes.flatten(0, 1), deltas.flatten(0, 1), max_shape=size
            )
            boxes = decoded.view(image.shape[0], -1, 4)
        sigmoid = stage.loss_cls.use_sigmoid
        scores = logits.sigmoid() if sigmoid else logits.softmax(dim=-1)[..., :-1]
        return of_queries(boxes, scores, head.test_cfg.max_per_img)
