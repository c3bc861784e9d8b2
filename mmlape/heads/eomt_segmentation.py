"""EoMT in MMSegmentation: losses, and the result of MMSegmentation's Mask2Former."""

from __future__ import annotations

from mmseg.models.decode_heads import Mask2FormerHead

from mmlape.checks import check_bool, check_positive_int
from mmlape.registry import MODELS

from .eomt_detection import EoMTHead
from .segmentation import SlidingWindows


@MODELS.register_module()
class EoMTSegHead(SlidingWindows, Mask2FormerHead, EoMTHead):
    """Losses and results of a :class:`~mmlape.backbones.EoMT`: the ``decode_head`` of ``mmseg.EncoderDecoder``.

    As :class:`EoMTHead`; a mask for each class in the label map is a target.

    Args:
        num_classes: Classes.
        ignore_index: Label that has no class. Default 255.
        align_corners: Of the segmentor's resizing. Default False.
        class_weight, mask_weight, dice_weight, no_object_weight, train_cfg, test_cfg, init_cfg: As in
            :class:`EoMTHead`.

    Raises:
        TypeError, ValueError: As :class:`EoMTHead`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int = 255,
        align_corners: bool = False,
        class_weight: float = 2.0,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        no_object_weight: float = 0.1,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        # The constructor of MMSegmentation's head would build decoders.
        EoMTHead.__init__(
            self,
            num_classes,
            class_weight=class_weight,
            mask_weight=mask_weight,
            dice_weight=dice_weight,
            no_object_weight=no_object_weight,
            train_cfg=train_cfg,
            test_cfg=test_cfg,
            init_cfg=init_cfg,
        )
        self.align_corners = check_bool('align_corners', align_corners)
        self.out_channels = self.num_classes
        self.ignore_index = check_positive_int('ignore_index', ignore_index, minimum=-100)
