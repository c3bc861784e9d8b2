"""A learning rate that rises linearly and then falls with the square root of the step."""

from __future__ import annotations

from typing import Any

from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler

from mmlape.checks import check_positive_int
from mmlape.registry import PARAM_SCHEDULERS


@PARAM_SCHEDULERS.register_module()
class RsqrtLR(LRSchedulerMixin, _ParamScheduler):
    """``lr min(1, t / warmup) sqrt(warmup / max(t, warmup))`` at step t = 0, 1, ..., with the optimizer's ``lr``, the
    greatest one (Transformer, NeurIPS 2017, eq. 3; Long-Range Arena, ICLR 2021).

    Args:
        optimizer: The optimizer, or its wrapper.
        warmup: Steps until ``lr`` is reached. Default 1000.
        options: MMEngine's ``begin``, from where steps count, ``end``, ``last_step``, ``by_epoch`` and ``verbose``.

    Raises:
        TypeError: If ``warmup`` is no integer.
        ValueError: If it is not positive.
    """

    def __init__(self, optimizer: object, warmup: int = 1000, **options: Any) -> None:
        self.warmup = check_positive_int('warmup', warmup)
        super().__init__(optimizer, **options)

    def _get_value(self) -> list[float]:
        step, warmup = self.last_step, self.warmup
        factor = min(1, step / warmup) * (warmup / max(step, warmup)) ** 0.5
        return [value * factor for value in self.base_values]
