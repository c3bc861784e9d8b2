"""Student and teacher."""

from __future__ import annotations

import copy
import math
from itertools import groupby
from typing import Any, cast

import torch
from mmengine.logging import MessageHub
from mmengine.model import BaseModule, ModuleDict
from mmpretrain.models import BaseSelfSupervisor
from mmpretrain.structures import DataSample
from torch import Tensor, nn

from mmlape.backbones import StagedTransformer
from mmlape.backbones.base import DENSE
from mmlape.checks import check_options, check_positive_int, check_rate
from mmlape.registry import MODELS

from .hooks import NearestNeighbours


@MODELS.register_module()
class DINO(BaseSelfSupervisor):
    """Self-distillation without labels (DINO, ICCV 2021).

    The student sees all views of an image, the teacher, whose weights are a moving average of the student's, the global
    ones; the student predicts what the teacher says of another view. ``backbone`` and ``head`` are the teacher's,
    ``student`` is a dict of both: the teacher is what is evaluated, and what ``mmlape.Pretrained`` with
    ``source='mmlape'``, or MMEngine's ``Pretrained`` with ``prefix='backbone.'``, takes out of a checkpoint. The
    teacher runs in evaluation mode, without stochastic depth, and takes over the student's buffers.

    Args:
        backbone: Config of a backbone that returns vectors: of ours with ``out_type='cls_token'``, say.
        head: Config of the head, e.g. ``dict(type='mmlape.DINOHead', in_channels=384)``.
        criterion: Config of the loss, without its ``num_channels``. Default ``dict(type='mmlape.DINOLoss')``.
        momentum: How much of the teacher stays in the first step; it grows along a cosine to 1 in the last iteration
            of the training, which the runner knows. Default 0.996.
        num_global: Views that the teacher sees, the first ones. Default 2.
        data_preprocessor: MMPretrain's, of type ``SelfSupDataPreprocessor`` unless it says otherwise. Default None.
        init_cfg: MMEngine's, of the whole model. Default None.

    Raises:
        ValueError: If a number is out of range, the backbone returns maps, or its channels are not the head's.
        TypeError: If an option is unknown or has the wrong type.
    """

    backbone: nn.Module
    head: nn.Module

    def __init__(
        self,
        backbone: dict,
        head: dict,
        criterion: dict | None = None,
        momentum: float = 0.996,
        num_global: int = 2,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        parts = dict(backbone=backbone, head=head, criterion=criterion)
        check_options(DINO, dict(parts, data_preprocessor=data_preprocessor, init_cfg=init_cfg))
        if data_preprocessor is None or isinstance(data_preprocessor, dict):  # in any scope
            named = dict(type='mmpretrain.SelfSupDataPreprocessor')
            data_preprocessor = {**named, **(data_preprocessor or {})}
        super().__init__(
            backbone=backbone, head=head, data_preprocessor=data_preprocessor, init_cfg=init_cfg
        )
        self.momentum = check_rate('momentum', momentum)
        self.num_global = check_positive_int('num_global', num_global)
        _check_vectors(self.backbone, self.head)
        self.student = ModuleDict(dict(backbone=self.backbone, head=self.head))
        self.backbone, self.head = _frozen_copy(self.backbone), _frozen_copy(self.head)
        self.criterion: nn.Module = MODELS.build(
            dict(criterion or dict(type='mmlape.DINOLoss'), num_channels=self.head.out_channels)
        )
        self.register_load_state_dict_pre_hook(_drop_steps)
        self.neighbours: NearestNeighbours | None = None
        self.train(self.training)

    def loss(self, inputs: list[Tensor], data_samples: Any = None) -> dict[str, Tensor]:
        """Move the teacher, then compare.

        Args:
            inputs: Views ``(B, 3, height, width)`` of the same B images, the global ones first; sizes may differ.
            data_samples: Not read.

        Returns:
            What the criterion returns: ``loss``, and for the log ``teacher_entropy`` and ``divergence``.

        Raises:
            ValueError: If there are no views, or fewer than two.
            RuntimeError: If no runner says how long the training is, and how far.
        """
        if not isinstance(inputs, (list, tuple)) or len(inputs) < max(2, self.num_global):
            found = f'{len(inputs)}' if isinstance(inputs, (list, tuple)) else 'no list of views'
            raise ValueError(
                f'DINO needs at least {max(2, self.num_global)} views of every image, got {found}: '
                'the pipeline must make them (MultiView), the dataloader stack them '
                "(collate_fn=dict(type='default_collate'))"
            )
        self.update_teacher()
        with torch.no_grad():
            teacher = _scores(self.backbone, self.head, inputs[: self.num_global])
        student = _scores(self.student['backbone'], self.student['head'], inputs)
        return self.criterion(student, teacher)

    @torch.no_grad()
    def update_teacher(self) -> None:
        """Move the teacher towards the student; in the first step of a training it becomes a copy."""
        done, length = _progress()
        share = 1.0
        if done:
            share = (1 - self.momentum) * (1 + math.cos(math.pi * min((done - 1) / length, 1))) / 2
        self._approach_student(share)

    def init_weights(self) -> None:
        """Initialise the student; the teacher is a copy of it."""
        super().init_weights()
        self._approach_student(1.0)

    @torch.no_grad()
    def _approach_student(self, share: float) -> None:
        for name, module in self.student.items():
            teacher = getattr(self, name)
            for own, theirs in zip(teacher.parameters(), module.parameters(), strict=True):
                own.lerp_(theirs, share)
            for kept, new in zip(teacher.buffers(), module.buffers(), strict=True):
                kept.copy_(new)

    def forward(
        self,
        inputs: Tensor | list[Tensor],
        data_samples: list[DataSample] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """The modes of MMPretrain's self-supervised models, of the teacher, and ``'predict'``: classes by
        :class:`KNNHook`."""
        if mode == 'predict':
            return self.predict(cast(Tensor, inputs), data_samples)
        return super().forward(inputs, data_samples, mode)

    def predict(
        self, inputs: Tensor, data_samples: list[DataSample] | None = None
    ) -> list[DataSample]:
        """Data samples with ``pred_score`` ``(num_classes,)`` and ``pred_label``.

        Raises:
            ValueError: If there is nothing to compare with.
        """
        if self.neighbours is None:
            raise ValueError(
                'DINO has no classes of its own: to validate or test it, add '
                "dict(type='mmlape.KNNHook', dataloader=...) to custom_hooks"
            )
        scores = self.neighbours(self.extract_feat(inputs)[-1])
        samples = data_samples or [DataSample() for _ in scores]
        return [
            sample.set_pred_score(score).set_pred_label(score.argmax())
            for sample, score in zip(samples, scores, strict=True)
        ]

    def train(self, mode: bool = True) -> DINO:
        """Switch between training and evaluation; the teacher stays in evaluation mode."""
        super().train(mode)
        self.backbone.eval()
        self.head.eval()
        return self


def _scores(backbone: nn.Module, head: nn.Module, views: list[Tensor]) -> Tensor:
    """Scores ``(V, B, K)``: a pass of the backbone for each run of views of one size, one pass of the head."""
    features = [
        backbone(torch.cat(list(run)))[-1] for _, run in groupby(views, lambda view: view.shape)
    ]
    return head(torch.cat(features)).unflatten(0, (len(views), -1))


def _check_vectors(backbone: nn.Module, head: nn.Module) -> None:
    if not isinstance(backbone, StagedTransformer):
        return
    if backbone.out_type in (*DENSE, 'cls_and_dist'):
        raise ValueError(
            f'out_type={backbone.out_type!r} of the backbone: DINO needs one vector of an image, '
            "'cls_token' or 'avg'"
        )
    channels = backbone.stages()[-1].embed_dims
    if channels != head.in_channels:
        raise ValueError(
            f'in_channels={head.in_channels} of the head: the backbone returns {channels} channels'
        )


def _frozen_copy(module: nn.Module) -> nn.Module:
    """A copy without gradients; what it starts from is the student's affair."""
    twin = copy.deepcopy(module).requires_grad_(False)
    for part in twin.modules():
        if isinstance(part, BaseModule):
            part.init_cfg = None
    return twin


def _drop_steps(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Drop ``steps`` of checkpoints up to version 0.2: a training from their weights would go on from their end."""
    state_dict.pop(f'{prefix}steps', None)


def _progress() -> tuple[int, int]:
    """Iterations that the training has done, and its length."""
    hub = MessageHub.get_current_instance()
    done, length = hub.get_info('iter'), hub.get_info('max_iters')
    if done is None or not length:
        raise RuntimeError(
            "the teacher's momentum depends on the course of the training: train with MMEngine's runner, or give "
            "'iter' and 'max_iters' to MessageHub.get_current_instance().update_info(...)"
        )
    return int(done), int(length)
