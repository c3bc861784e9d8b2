"""Classifiers that learn from a teacher, for MMPretrain, which has DeiT's distilled models but does not train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from mmpretrain.models import BaseClassifier, DeiTClsHead, ImageClassifier
from mmpretrain.structures import DataSample
from torch import Tensor

from mmlape.checks import check_rate
from mmlape.registry import MODELS


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """Hard distillation through a token (DeiT, ICML 2021, section 4).

    The score of the class token learns the labels, the score of the distillation token the class that a teacher chooses
    for the same augmented image; predictions are the mean of both, which is what MMPretrain's ``DeiTClsHead`` does. The
    teacher is built when training starts, is not part of checkpoints, and is not trained. It sees images as the data
    preprocessor of the student leaves them.

    A config that names it needs ``custom_imports = dict(imports=['mmlape.research.pretraining.distillation'])``:
    MMPretrain is not imported otherwise.

    Args:
        teacher: Config of a classifier of MMPretrain, e.g. ``dict(type='TimmClassifier', model_name=
            'regnety_160.deit_in1k', pretrained=True)``; its ``init_cfg`` is applied. Its classes are the student's.
        teacher_weight: Share of the teacher in the loss, 0 to 1. Default 0.5.
        options: Of MMPretrain's ``ImageClassifier``; ``head`` must be a ``DeiTClsHead``, ``backbone`` one with
            ``out_type='cls_and_dist'``.

    Raises:
        ValueError: If ``teacher_weight`` is out of range or, in the first step, the teacher has other classes.
        TypeError: If ``head`` is another one.
    """

    def __init__(self, teacher: dict, teacher_weight: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(self.head, DeiTClsHead):
            raise TypeError(f'head must be a DeiTClsHead, got {type(self.head).__name__}')
        self.teacher_weight = check_rate('teacher_weight', teacher_weight, with_one=True)
        self._teacher_cfg = teacher
        # In a tuple: no submodule, so that optimizers, checkpoints and DDP do not see it.
        self._teachers: tuple[BaseClassifier, ...] = ()

    @property
    def teacher(self) -> BaseClassifier:
        """The teacher.

        Raises:
            ValueError: If training has not started (``init_weights``).
        """
        if not self._teachers:
            raise ValueError('the teacher is built by init_weights(), which was not called')
        return self._teachers[0]

    def init_weights(self) -> None:
        """Initialise the student, and build the teacher."""
        super().init_weights()
        if self._teachers:
            return
        teacher = MODELS.build(self._teacher_cfg)
        if teacher.init_cfg:
            teacher.init_weights()
        like = next(self.parameters())
        self._teachers = (teacher.to(like.device).requires_grad_(False).eval(),)

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """Losses ``loss_label`` and ``loss_teacher`` for images ``(B, 3, height, width)``.

        Raises:
            ValueError: If the teacher has other classes than the head.
        """
        cls_token, dist_token = self.head.pre_logits(self.extract_feat(inputs))
        label = self.head._get_loss(self.head.layers.head(cls_token), data_samples)['loss']
        with torch.no_grad():
            answers = self.teacher(inputs, mode='tensor')
        if answers.shape[1] != self.head.num_classes:
            raise ValueError(
                f'the teacher gives {answers.shape[1]} scores, the head {self.head.num_classes}: '
                'their classes must be the same'
            )
        teacher = F.cross_entropy(self.head.layers.head_dist(dist_token), answers.argmax(dim=1))
        return dict(
            loss_label=(1 - self.teacher_weight) * label, loss_teacher=self.teacher_weight * teacher
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any):
        # The teacher goes where the student goes.
        for teacher in self._teachers:
            teacher._apply(fn, *args, **kwargs)
        return super()._apply(fn, *args, **kwargs)
