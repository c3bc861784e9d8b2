"""Detectors with queries, DETR's family and Mask2Former's, as networks with one answer.

MMDetection takes sizes of maps from tensors or as limits of ``linspace``, which fixes them in a graph; here they are
integers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from mmdet.models.detectors import DDQDETR, DINO
from mmdet.models.layers import DeformableDetrTransformerEncoder, MSDeformAttnPixelDecoder
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from torch import Tensor, nn
from torch.nn import functional

from mmlape.runtime.submodules import as_class, replace_submodules

from .selection import Size, best, of_queries, sides_of, take

INSTANCE_OFFSET = 1000  # MMDetection's panoptic ids are label + 1000 * number of the instance


class DetrDetector(nn.Module):
    """Deformable DETR and DINO."""

    outputs = ('boxes', 'scores', 'labels')

    def __init__(self, model: Any) -> None:
        super().__init__()
        if isinstance(model, DDQDETR):
            raise ValueError('DDQDETR cannot be exported: it suppresses queries image by image')
        if not model.bbox_head.loss_cls.use_sigmoid:
            raise ValueError('bbox_head.loss_cls must have use_sigmoid=True to be exported')
        self.model: Any = model
        model.encoder = as_class(model.encoder, Encoder)
        model.gen_encoder_output_proposals = partial(_proposals, model)

    def forward(self, image: Tensor, size: Size) -> tuple[Tensor, ...]:
        """Boxes ``(B, K, 4)``, scores and labels ``(B, K)`` of an image ``(B, 3, H, W)``."""
        model, head = self.model, self.model.bbox_head
        maps = model.extract_feat(image)
        positions = [
            model.positional_encoding(None, input=each) + embed.view(1, -1, 1, 1)
            for each, embed in zip(maps, model.level_embed, strict=True)
        ]
        # Without padding, all of a map is valid, and nothing is masked.
        levels = dict(
            spatial_shapes=[(each.shape[2], each.shape[3]) for each in maps],
            level_start_index=None,
            valid_ratios=image.new_ones(image.shape[0], len(maps), 2),
        )
        memory = model.encoder(
            query=_tokens(maps), query_pos=_tokens(positions), key_padding_mask=None, **levels
        )
        inputs, _ = model.pre_decoder(memory, None, levels['spatial_shapes'])
        references = inputs['reference_points']
        is_dino = isinstance(model, DINO)
        states, refined = model.decoder(
            query=inputs['query'],
            value=memory,
            key_padding_mask=None,
            reference_points=references,
            reg_branches=head.reg_branches if is_dino or model.with_box_refine else None,
            **(dict(self_attn_mask=None) if is_dino else dict(query_pos=inputs['query_pos'])),
            **levels,
        )
        logits, boxes = head(states, list(refined) if is_dino else [references, *refined])
        boxes = bbox_cxcywh_to_xyxy(boxes[-1])
        sides = sides_of(size, boxes)
        boxes = (boxes * sides).clamp(min=0).minimum(sides)
        return of_queries(boxes, logits[-1].sigmoid(), head.test_cfg.get('max_per_img', 100))


def _tokens(maps: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """``(B, sum of H * W, C)``."""
    return torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=1)


def _centres(shape: tuple[int, int], like: Tensor) -> Tensor:
    """Compute the centres of the cells of a map, ``(H * W, 2)``: x, y, 0 to 1."""
    down, across = (
        (torch.arange(side, dtype=torch.float32, device=like.device) + 0.5) / side for side in shape
    )
    rows, columns = torch.meshgrid(down, across, indexing='ij')
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)


class Encoder(DeformableDetrTransformerEncoder):
    """MMDetection's encoder with sizes of maps as integers; parameters are the same."""

    @staticmethod
    def get_encoder_reference_points(
        spatial_shapes: list[tuple[int, int]], valid_ratios: Tensor, device: Any
    ) -> Tensor:
        """Where queries are, ``(B, N, levels, 2)``, in maps without padding."""
        centres = torch.cat([_centres(shape, valid_ratios) for shape in spatial_shapes])
        return centres.view(1, -1, 1, 2).expand(*valid_ratios.shape[:1], -1, len(spatial_shapes), 2)


def _proposals(
    model: Any, memory: Tensor, _: None, shapes: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Return the features that proposals are predicted from, ``(B, N, C)``, and a box at each cell, ``(1, N, 4)``: x,
    y, width and height before the sigmoid; infinite where it leaves the image."""
    boxes = []
    for level, shape in enumerate(shapes):
        centres = _centres(shape, memory)
        boxes.append(torch.cat([centres, torch.full_like(centres, 0.05 * 2**level)], dim=-1))
    found = torch.cat(boxes).unsqueeze(0)
    is_inside = ((found > 0.01) & (found < 0.99)).all(dim=-1, keepdim=True)
    found = (found / (1 - found)).log().masked_fill(~is_inside, float('inf'))
    return model.memory_trans_norm(model.memory_trans_fc(memory * is_inside)), found


class PixelDecoder(MSDeformAttnPixelDecoder):
    """MMDetection's pixel decoder of Mask2Former with sizes of maps as integers; parameters are the same."""

    def forward(self, feats: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The map that masks are made of, and maps for the decoder, coarse to fine, of maps from fine to coarse."""
        levels = range(self.num_input_levels - 1, -1, -1)[: self.num_encoder_levels]
        maps = [conv(feats[level]) for conv, level in zip(self.input_convs, levels, strict=True)]
        shapes = [(each.shape[2], each.shape[3]) for each in maps]
        positions, points = [], []
        for number, (level, each, shape) in enumerate(zip(levels, maps, shapes, strict=True)):
            embed = self.level_encoding.weight[number].view(1, -1, 1, 1)
            nowhere = each.new_zeros((each.shape[0], *shape), dtype=torch.bool)
            positions.append(self.postional_encoding(nowhere) + embed)
            grid = self.point_generator.single_level_grid_priors(shape, level, device=each.device)
            points.append(grid / (sides_of(shape, each)[:2] * self.strides[level]))
        tokens = _tokens(maps)
        centres = torch.cat(points).view(1, -1, 1, 2)
        memory = self.encoder(
            query=tokens,
            query_pos=_tokens(positions),
            key_padding_mask=None,
            spatial_shapes=shapes,
            reference_points=centres.expand(tokens.shape[0], -1, len(maps), -1),
            level_start_index=None,
            valid_ratios=tokens.new_ones(tokens.shape[0], len(maps), 2),
        )
        parts = memory.split([height * width for height, width in shapes], dim=1)
        found = [
            part.transpose(1, 2).unflatten(2, shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]
        for level in range(self.num_input_levels - self.num_encoder_levels - 1, -1, -1):
            own = self.lateral_convs[level](feats[level])
            above = functional.interpolate(
                found[-1], size=own.shape[-2:], mode='bilinear', align_corners=False
            )
            found.append(self.output_convs[level](own + above))
        return self.mask_feature(found[-1]), found[: self.num_outs]


def with_integer_sizes(model: Any) -> Any:
    """The model with :class:`PixelDecoder` instead of MMDetection's."""
    kind = MSDeformAttnPixelDecoder
    return replace_submodules(
        model, lambda each: as_class(each, PixelDecoder) if type(each) is kind else None
    )


class MaskDetector(nn.Module):
    """Mask2Former and EoMT: instances with masks ``(B, K, H, W)``, boolean, and boxes around them; or panoptic ids
    ``(B, H, W)``, label + 1000 * number of the instance, where MMDetection's config asks for those."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = with_integer_sizes(model)
        self.settings: Any = model.panoptic_fusion_head.test_cfg
        self.panoptic = self.settings.get('panoptic_on', True)
        instances = ('boxes', 'scores', 'labels', 'masks')
        self.outputs = ('panoptic',) if self.panoptic else instances

    def forward(self, image: Tensor, size: Size) -> tuple[Tensor, ...] | Tensor:
        """Segment images ``(B, 3, H, W)``; ``size`` is the unpadded size."""
        head = self.model.panoptic_head
        classes, masks = (each[-1] for each in head(self.model.extract_feat(image), []))
        shape = tuple(image.shape[-2:])
        masks = functional.interpolate(masks, size=shape, mode='bilinear', align_corners=False)
        masks = masks[..., : size[0], : size[1]]
        probabilities = classes.softmax(dim=-1)
        if self.panoptic:
            return self._panoptic(probabilities, masks)
        return self._instances(probabilities[..., :-1], masks)

    def _instances(self, probabilities: Tensor, masks: Tensor) -> tuple[Tensor, ...]:
        count, classes = self.settings.get('max_per_image', 100), probabilities.shape[-1]
        scores, indices = best(probabilities.flatten(1), count)
        labels = indices % classes
        logits = take(masks, indices.div(classes, rounding_mode='floor'))
        found = logits > 0
        quality = (logits.sigmoid() * found).sum(dim=(2, 3)) / (found.sum(dim=(2, 3)) + 1e-6)
        things = labels < self.model.panoptic_head.num_things_classes
        scores, order = best(scores * quality * things, count)
        found = take(found, order)
        return boxes_around(found), scores, take(labels, order), found

    def _panoptic(self, probabilities: Tensor, masks: Tensor) -> Tensor:
        settings, head = self.settings, self.model.panoptic_fusion_head
        scores, labels = probabilities.max(dim=-1)
        masks = masks.sigmoid()
        valid = (labels != head.num_classes) & (scores > settings.get('object_mask_thr', 0.8))
        # A query without an object wins nowhere, as if it were not there.
        owner = (masks * scores[..., None, None]).where(valid[..., None, None], -1).argmax(dim=1)
        numbers = torch.arange(masks.shape[1], device=masks.device).view(1, -1, 1, 1)
        won, above = owner.unsqueeze(1) == numbers, masks >= 0.5
        area, whole = won.sum(dim=(2, 3)), above.sum(dim=(2, 3))
        kept = valid & (area > 0) & (whole > 0) & (area >= settings.get('iou_thr', 0.8) * whole)
        things = labels < head.num_things_classes
        instance = (kept & things).long().cumsum(dim=1) * things
        drawn = won & kept[..., None, None]
        if settings.get('filter_low_score', False):
            drawn = drawn & above
        ids = (labels + INSTANCE_OFFSET * instance)[..., None, None] * drawn
        return ids.sum(dim=1) + head.num_classes * ~drawn.any(dim=1)


def boxes_around(masks: Tensor) -> Tensor:
    """``(B, K, 4)`` around boolean masks ``(B, K, H, W)``; zeros around nothing, as MMDetection's."""
    edges = []
    for axis in (3, 2):  # columns, then rows
        is_inside = masks.any(dim=5 - axis)
        position = torch.arange(masks.shape[axis], device=masks.device, dtype=torch.float32)
        last = (position + 1) * is_inside
        first = position.where(is_inside, masks.shape[axis])
        edges.append((first.amin(dim=-1), last.amax(dim=-1)))
    (left, right), (top, bottom) = edges
    boxes = torch.stack([left, top, right, bottom], dim=-1)
    return boxes * masks.flatten(2).any(dim=-1, keepdim=True)
