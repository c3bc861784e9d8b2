"""EoMT in MMSegmentation: losses, and the result of MMSegmentation's Mask2Former."""

from __future__ import annotations

from typing import Any

from mmseg.models.decode_heads import Mask2FormerHead
from torch import Tensor

from mmlape.backbones.eomt import Predictions
from mmlape.checks import check_bool, check_positive_int
from mmlape.registry import MODELS

from .eomt_detection import EoMTHead


@MODELS.register_module()
class EoMTSegHead(Mask2FormerHead, EoMTHead):
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

    def predict(self, x: Predictions, batch_img_metas: list[dict], test_cfg: Any) -> Tensor:
        """Logits of classes ``(B, classes, H, W)`` of the image or, in sliding windows, of a window."""
        if test_cfg.get('mode') == 'slide':
            # Of each window, MMSegmentation changes img_shape alone (its issue #3666).
            batch_img_metas = [{**meta, 'pad_shape': meta['img_shape']} for meta in batch_img_metas]
        return super().predict(x, batch_img_metas, test_cfg)
