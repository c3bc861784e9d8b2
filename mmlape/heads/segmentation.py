"""Mask2Former's head of MMSegmentation, for mixed precision."""

from mmseg.models.decode_heads import Mask2FormerHead as UpstreamHead

from mmlape.registry import MODELS

from .detection import Float32Losses


@MODELS.register_module()
class Mask2FormerSegHead(Float32Losses, UpstreamHead):
    """MMSegmentation's Mask2Former head (CVPR 2022) with its options and weights; matching and losses are in float32.

    It needs MMDetection too, as MMSegmentation's does. Without autocast it computes what that one does.
    """
