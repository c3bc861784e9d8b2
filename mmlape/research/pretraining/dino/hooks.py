"""Hooks of DINO: gradients between the backward pass and the step, and a classifier by the nearest neighbours."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import all_gather
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from mmlape.checks import check_number, check_positive_int, check_type
from mmlape.registry import HOOKS
from mmlape.training.stop_hooks import unwrapped


@HOOKS.register_module()
class DINOGradientsHook(Hook):
    """Clips the gradient of every parameter by its own norm, and keeps the student's last layer as it is at first.

    MMEngine's ``clip_grad`` would clip the norm of all gradients together; the published training clips each. Both
    happen when the optimizer steps: several processes have averaged their gradients by then, and mixed precision has
    taken its scale off (not with ``fused=True``, which unscales inside the step).

    Args:
        max_norm: Of a parameter's gradient. Default 3; None for no clipping.
        freeze_last_layer: Epochs in which ``student.head.last_layer`` does not move. Default 1. Trainings that count
            iterations have no epochs: 0 there.

    Raises:
        ValueError: If ``max_norm`` is not above 0 or ``freeze_last_layer`` less than 0; when training starts, if the
            model has no such layer, ``freeze_last_layer`` is not 0 where iterations count, or gradients are
            accumulated.
        TypeError: If an option has the wrong type.
    """

    def __init__(self, max_norm: float | None = 3.0, freeze_last_layer: int = 1) -> None:
        self.max_norm = None if max_norm is None else check_number('max_norm', max_norm, above=0)
        self.freeze_last_layer = check_positive_int(
            'freeze_last_layer', freeze_last_layer, minimum=0
        )
        self._handle: Any = None

    def before_train(self, runner: Runner) -> None:
        """Join the optimizer's steps."""
        model = unwrapped(runner.model)
        try:
            last = list(model.get_submodule('student.head.last_layer').parameters())
        except AttributeError as error:
            raise ValueError(
                f'DINOGradientsHook is for mmlape.DINO; a {type(model).__name__} has no '
                'student.head.last_layer'
            ) from error
        if self.freeze_last_layer and isinstance(runner.train_loop, IterBasedTrainLoop):
            raise ValueError(
                f'freeze_last_layer={self.freeze_last_layer} counts epochs, which a training by iterations does not '
                'have: set it to 0, or train with train_cfg=dict(by_epoch=True, max_epochs=...)'
            )
        accumulated = getattr(runner.optim_wrapper, '_accumulative_counts', 1)
        if accumulated > 1:
            raise ValueError(
                f'optim_wrapper.accumulative_counts must be 1 for DINO, got {accumulated}: teacher and centre would '
                'move with every batch'
            )
        self._handle = runner.optim_wrapper.optimizer.register_step_pre_hook(
            partial(self._before_step, runner, last)
        )

    def after_train(self, runner: Runner) -> None:
        """Leave them."""
        self._handle.remove()

    def _before_step(
        self, runner: Runner, last: list[nn.Parameter], optimizer: Any, *_: Any
    ) -> None:
        if self.max_norm is not None:
            for group in optimizer.param_groups:
                for parameter in group['params']:
                    if parameter.grad is not None:
                        clip_grad_norm_(parameter, self.max_norm)
        if runner.epoch < self.freeze_last_layer:
            for parameter in last:
                parameter.grad = None  # no step, no weight decay, no moments


class NearestNeighbours:
    """Weighted votes of the most similar images (DINO, ICCV 2021, section 4; Wu et al., CVPR 2018).

    Args:
        features: ``(N, C)`` of images whose classes are known.
        labels: Their classes ``(N,)``.
        num_classes: Number of classes.
        k: Images that vote; all where there are fewer. Default 20.
        temperature: The vote of an image with the cosine s is exp(s / temperature). Default 0.07.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If an option has the wrong type.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        num_classes: int,
        k: int = 20,
        temperature: float = 0.07,
    ) -> None:
        self.k = min(check_positive_int('k', k), len(features))
        self.temperature = check_number('temperature', temperature, above=0)
        self.features = F.normalize(features.float(), dim=-1)
        self.votes = F.one_hot(labels, check_positive_int('num_classes', num_classes)).float()

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Shares ``(B, num_classes)`` of the votes, for features ``(B, C)``."""
        cosines, nearest = (F.normalize(features.float(), dim=-1) @ self.features.T).topk(self.k)
        weights = (cosines / self.temperature).softmax(-1)
        return torch.einsum('bk,bkc->bc', weights, self.votes[nearest])


@HOOKS.register_module()
class KNNHook(Hook):
    """Lets :class:`DINO` classify in validation and test by the nearest neighbours among labelled images.

    Their features are computed before every validation and test, by all processes together, and forgotten after it::

        custom_hooks = [dict(type='mmlape.KNNHook', dataloader=dict(...))]
        val_evaluator = dict(type='Accuracy', topk=(1, 5))

    Args:
        dataloader: Config of a dataloader over the labelled images, without augmentation, not shuffled; its sampler
            gives every process as many (MMEngine's ``DefaultSampler`` does).
        k: Images that vote. Default 20.
        temperature: Of their votes. Default 0.07.

    Raises:
        ValueError: If a number is out of range; before a test, if the model is not a :class:`DINO`.
        TypeError: If an option has the wrong type.
    """

    def __init__(self, dataloader: dict, k: int = 20, temperature: float = 0.07) -> None:
        self.k = check_positive_int('k', k)
        self.temperature = check_number('temperature', temperature, above=0)
        check_type('dataloader', dataloader, dict)
        self.dataloader = dataloader
        self._built: DataLoader | None = None

    def before_val_epoch(self, runner: Runner) -> None:
        """Remember the images."""
        model = unwrapped(runner.model)
        if not hasattr(model, 'neighbours'):
            raise ValueError(f'KNNHook is for mmlape.DINO, not for a {type(model).__name__}')
        if self._built is None:
            self._built = runner.build_dataloader(self.dataloader, seed=runner.seed)
        dataset: Any = self._built.dataset
        print_log(f'k-NN: features of {len(dataset)} images', logger='current')
        features, labels = _features(model, self._built)
        classes = dataset.metainfo.get('classes')
        num_classes = len(classes) if classes else int(labels.max()) + 1
        model.neighbours = NearestNeighbours(
            features, labels, num_classes, self.k, self.temperature
        )

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Forget them."""
        unwrapped(runner.model).neighbours = None

    before_test_epoch, after_test_epoch = before_val_epoch, after_val_epoch


@torch.no_grad()
def _features(model, loader) -> tuple[Tensor, Tensor]:
    """Features ``(N, C)`` and labels ``(N,)`` of all images, on every process."""
    was_training = model.training
    model.eval()
    parts = []
    for batch in loader:
        data = model.data_preprocessor(batch, False)
        (*_, found) = model.extract_feat(data['inputs'])
        labels = torch.stack([sample.gt_label.view(()) for sample in data['data_samples']])
        parts.append((found.float(), labels.to(found.device)))
    model.train(was_training)
    # Image i is in process i modulo their number; what the sampler has repeated at the end is left out.
    return tuple(
        torch.stack(all_gather(torch.cat(part)), dim=1).flatten(0, 1)[: len(loader.dataset)]
        for part in zip(*parts, strict=True)
    )  # type: ignore[return-value]
