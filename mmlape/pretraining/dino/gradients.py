"""What DINO's training does to gradients between the backward pass and the step."""

from __future__ import annotations

from functools import partial
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn
from torch.nn.utils import clip_grad_norm_

from mmlape.checks import check_number, check_positive_int
from mmlape.registry import HOOKS


@HOOKS.register_module()
class DINOGradientsHook(Hook):
    """Clips the gradient of every parameter by its own norm, and keeps the student's last layer as it is at first.

    MMEngine's ``clip_grad`` would clip the norm of all gradients together; the published training clips each. Both
    happen when the optimizer steps: several processes have averaged their gradients by then, and mixed precision has
    taken its scale off (not with ``fused=True``, which unscales inside the step).

    Args:
        max_norm: Of a parameter's gradient. Default 3; None for no clipping.
        freeze_last_layer: Epochs in which ``student.head.last_layer`` does not move. Default 1.

    Raises:
        ValueError: If ``max_norm`` is not above 0 or ``freeze_last_layer`` less than 0; when training starts, if the
            model has no such layer.
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
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        try:
            last = list(model.get_submodule('student.head.last_layer').parameters())
        except AttributeError as error:
            raise ValueError(
                f'DINOGradientsHook is for mmlape.DINO; a {type(model).__name__} has no '
                'student.head.last_layer'
            ) from error
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
