"""Segmentors as networks with one answer."""

from __future__ import annotations

from typing import Any

import torch
from mmseg.models.decode_heads import Mask2FormerHead
from torch import Tensor, nn
from torch.nn import functional

from .selection import Size


class Segmentor(nn.Module):
    """Any head of MMSegmentation: ``logits`` ``(B, classes, H, W)`` of an image, or of one of its windows."""

    outputs = ('logits',)

    def __init__(self, model: Any) -> None:
        super().__init__()
        if model.decode_head.out_channels == 1:
            raise ValueError('a decode_head with one channel for two classes cannot be exported')
        self.model: Any = model
        self.has_queries = isinstance(model.decode_head, Mask2FormerHead)
        if self.has_queries:
            from .queries import with_integer_sizes  # MMDetection's, which this head needs

            self.model = with_integer_sizes(model)

    def forward(self, image: Tensor, size: Size) -> Tensor:
        """Segment images ``(B, 3, H, W)``, padded to the right and below; ``size`` is the unpadded size."""
        model, shape = self.model, (image.shape[2], image.shape[3])
        if self.has_queries:
            logits = _of_queries(model.decode_head(model.extract_feat(image), []), shape)
        else:
            logits = model.encode_decode(image, [dict(img_shape=shape, pad_shape=shape)])
        return logits[..., : size[0], : size[1]]


def _of_queries(outputs: tuple[list[Tensor], list[Tensor]], size: Size) -> Tensor:
    """Compute scores of each class from masks and classes of queries (Mask2Former, CVPR 2022); upstream's head copies
    sizes, which a graph for any size does not allow."""
    classes, masks = (each[-1] for each in outputs)
    masks = functional.interpolate(masks, size=size, mode='bilinear', align_corners=False)
    return torch.einsum('bqc,bqhw->bchw', classes.softmax(dim=-1)[..., :-1], masks.sigmoid())
