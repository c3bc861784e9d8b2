"""Mask2Former's head of MMSegmentation, for mixed precision and sliding windows."""

from __future__ import annotations

from typing import Any

from mmseg.models.decode_heads import Mask2FormerHead as UpstreamHead
from torch import Tensor

from mmlape.registry import MODELS

from .detection import Float32Losses


class SlidingWindows:
    """Mixin for MMSegmentation's Mask2Former head: a window has its own size."""

    def predict(self, x: Any, batch_img_metas: list[dict], test_cfg: Any) -> Tensor:
        """Logits of classes ``(B, classes, H, W)`` of the image or, in sliding windows, of a window."""
        if (test_cfg or {}).get('mode') == 'slide':
            # MMSegmentation changes only the img_shape of each window (its issue #3666).
            batch_img_metas = [{**meta, 'pad_shape': meta['img_shape']} for meta in batch_img_metas]
        return super().predict(x, batch_img_metas, test_cfg)  # type: ignore[misc]


@MODELS.register_module()
class Mask2FormerSegHead(SlidingWindows, Float32Losses, UpstreamHead):
    """MMSegmentation's Mask2Former head (CVPR 2022) with its options and weights; matching and losses are in float32.

    It needs MMDetection too, as MMSegmentation's does. Without autocast it computes what that one does, which fails in
    sliding windows of images that ``ResizeToMultiple`` or ``Pad`` has made larger.
    """
