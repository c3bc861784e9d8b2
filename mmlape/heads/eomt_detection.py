"""EoMT in MMDetection: losses and results of its Mask2Former, for instance and panoptic segmentation."""

from __future__ import annotations

from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.registry import TASK_UTILS

from mmlape.backbones.eomt import Predictions
from mmlape.checks import check_number, check_options, check_positive_int, check_rate
from mmlape.registry import MODELS

from .detection import Float32Losses


@MODELS.register_module()
class EoMTHead(Float32Losses, Mask2FormerHead):
    """Losses and results of a :class:`~mmlape.backbones.EoMT`: the ``panoptic_head`` of ``mmdet.Mask2Former``.

    It has no parameters: queries, classes and masks are the network's. Losses are Mask2Former's (CVPR 2022, section
    3.2.2), with the numbers of EoMT's released code, of every prediction; in float32, also under autocast.

    Args:
        num_things_classes: Classes of instances.
        num_stuff_classes: Classes without instances; 0 (default) for instance segmentation.
        class_weight: Weight of the classes' loss and cost. Default 2.
        mask_weight: Of the masks' binary cross-entropy. Default 5.
        dice_weight: Of the masks' Dice loss. Default 5.
        no_object_weight: Weight of "no object" among the classes. Default 0.1.
        train_cfg: Some of ``num_points`` (12544), ``oversample_ratio`` (3.0), ``importance_sample_ratio`` (0.75),
            ``assigner`` and ``sampler``, as of Mask2Former; the detector passes its own. Default None.
        test_cfg: The detector's. Default None.
        init_cfg: Without effect, since there are no parameters. Default None.

    Raises:
        ValueError: If a number is out of range, or, in a pass, the network predicts another number of classes.
        TypeError: If an option has the wrong type.
    """

    def __init__(
        self,
        num_things_classes: int,
        num_stuff_classes: int = 0,
        *,
        class_weight: float = 2.0,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        no_object_weight: float = 0.1,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        check_options(EoMTHead, dict(train_cfg=train_cfg, test_cfg=test_cfg, init_cfg=init_cfg))
        # Mask2FormerHead's constructor would build its decoders.
        BaseDenseHead.__init__(self, init_cfg=init_cfg)
        self.num_things_classes = check_positive_int('num_things_classes', num_things_classes)
        self.num_stuff_classes = check_positive_int(
            'num_stuff_classes', num_stuff_classes, minimum=0
        )
        self.num_classes = self.num_things_classes + self.num_stuff_classes
        weights = dict(
            class_weight=class_weight, mask_weight=mask_weight, dice_weight=dice_weight,
            no_object_weight=no_object_weight,
        )  # fmt: skip
        for name, weight in weights.items():
            check_number(name, weight, minimum=0)
        self.class_weight = [1.0] * self.num_classes + [no_object_weight]
        cross_entropy = dict(type='mmdet.CrossEntropyLoss', reduction='mean')
        self.loss_cls = MMDET_MODELS.build(
            dict(cross_entropy, loss_weight=class_weight, class_weight=self.class_weight)
        )
        self.loss_mask = MMDET_MODELS.build(
            dict(cross_entropy, loss_weight=mask_weight, use_sigmoid=True)
        )
        dice = dict(
            type='mmdet.DiceLoss', use_sigmoid=True, activate=True, naive_dice=True, eps=1.0
        )
        self.loss_dice = MMDET_MODELS.build(dict(dice, loss_weight=dice_weight))
        self.test_cfg, self.train_cfg = test_cfg, train_cfg
        self._build_matching(class_weight, mask_weight, dice_weight, **(train_cfg or {}))

    def _build_matching(
        self,
        class_weight: float,
        mask_weight: float,
        dice_weight: float,
        num_points: int = 12544,
        oversample_ratio: float = 3.0,
        importance_sample_ratio: float = 0.75,
        assigner: dict | None = None,
        sampler: dict | None = None,
    ) -> None:
        """The assignment of predictions to masks, and the points at which masks are compared."""
        self.num_points = check_positive_int('num_points', num_points)
        self.oversample_ratio = check_number('oversample_ratio', oversample_ratio, minimum=1)
        self.importance_sample_ratio = check_rate(
            'importance_sample_ratio', importance_sample_ratio, with_one=True
        )
        costs = [
            dict(type='mmdet.ClassificationCost', weight=class_weight),
            dict(type='mmdet.CrossEntropyLossCost', weight=mask_weight, use_sigmoid=True),
            dict(type='mmdet.DiceCost', weight=dice_weight, pred_act=True, eps=1.0),
        ]
        self.assigner = TASK_UTILS.build(
            assigner or dict(type='mmlape.HungarianAssigner', match_costs=costs)
        )
        self.sampler = TASK_UTILS.build(sampler or dict(type='mmdet.MaskPseudoSampler'))

    def init_weights(self) -> None:
        """Nothing: there are no parameters."""

    def forward(self, x: Predictions, batch_data_samples: list | None = None) -> Predictions:
        """Return the network's predictions as they are."""
        classes, masks = x
        found = classes[-1].shape[-1] - 1
        if found != self.num_classes:
            raise ValueError(
                f'the head has {self.num_classes} classes, the backbone num_classes={found}: both must be equal'
            )
        self.num_queries = classes[-1].shape[1]
        return classes, masks
