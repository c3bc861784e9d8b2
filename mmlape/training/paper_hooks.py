"""Hooks of the papers: training position alone (Gabor), and logging DTN's ratios."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mmlape.backbones.position_only import (
    freeze_all_but_position,
    hold_statistics,
    statistics_of,
)
from mmlape.checks import check_positive_int
from mmlape.norm.dtn import DTN
from mmlape.registry import HOOKS

from .checkpoint_hooks import built_loops
from .sharding import whole
from .stop_hooks import unwrapped

# A scalar's name is dtn_ratio/<layer>/<mean or var>/<head>.
RATIO_PREFIX = 'dtn_ratio'
RATIOS = ('mean', 'var')


@HOOKS.register_module()
class DTNRatioHook(Hook):
    """Log the ratios of mean and variance of every DTN layer and head (DTN, ICLR 2022, Figure 8).

    The visualization backends of the run get one scalar per layer, kind and head, called
    ``dtn_ratio/<layer>/<mean or var>/<head>``, e.g. ``dtn_ratio/backbone.block1.0.norm1/mean/0``: the share (0 to 1)
    of the token's own statistics. They are logged before the first step and then every ``interval`` iterations;
    ``mmlape picture dtn_ratios`` draws them. Fixed ratios are left out; without a learned one, a warning is logged. In
    any config::

        custom_hooks = [dict(type='mmlape.DTNRatioHook', interval=50)]

    Args:
        interval: Iterations from one record to the next, an integer of at least 1. Default 50.
    """

    def __init__(self, interval: int = 50) -> None:
        self.interval = check_positive_int('interval', interval)
        self._has_ratios = False

    def before_train(self, runner: Runner) -> None:
        """Log the initial values."""
        self._has_ratios = bool(learned_ratios(unwrapped(runner.model)))
        if self._has_ratios:
            _log(runner, runner.iter)
        else:
            runner.logger.warning(
                'DTNRatioHook has nothing to log: the model has no mmlape.DTN with '
                "ratio_mean='learned' or ratio_var='learned'"
            )

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs=None
    ) -> None:
        """Log every ``interval`` iterations."""
        if self._has_ratios and self.every_n_train_iters(runner, self.interval):
            _log(runner, runner.iter + 1)


def learned_ratios(model: nn.Module) -> dict[str, float]:
    """Every learned ratio of a model by the name of its scalar."""
    found: dict[str, float] = {}
    for path, module in model.named_modules():
        if not isinstance(module, DTN):
            continue
        for kind in RATIOS:
            ratio = getattr(module, f'ratio_{kind}')
            if ratio.value is None:
                values = whole(ratio(ratio.omega.detach().float())).flatten().tolist()
                found |= {
                    f'{RATIO_PREFIX}/{path}/{kind}/{head}': value
                    for head, value in enumerate(values)
                }
    return found


def _log(runner: Runner, step: int) -> None:
    runner.visualizer.add_scalars(learned_ratios(unwrapped(runner.model)), step=step)


@HOOKS.register_module()
class PositionOnlyHook(Hook):
    """Train position alone (Gabor position encoding, section 3.3): everything else stays bitwise the same.

    Position is what the stages of our backbones name: embeddings and their joining (LaPE's norms too), and attention
    position. All other parameters, those of necks and heads too, get no gradient, and running statistics are not
    updated. Dropout and stochastic depth stay as configured: the paper's recipe has them. A run that resumes needs the
    hook too. In any config::

        custom_hooks = [dict(type='mmlape.PositionOnlyHook')]

    Raises:
        ValueError: From the runner's ``train``: if the model has no backbone of ours, no position with parameters, or
            one that ``frozen_stages`` has frozen; or if it is wrapped by anything but
            ``MMDistributedDataParallel``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def __init__(self) -> None:
        self._with_statistics: list[nn.Module] = []

    def before_run(self, runner: Runner) -> None:
        """Freeze before weights are initialized and loaded; does nothing in a test."""
        if 'train' not in built_loops(runner):
            return
        model, wrapped = runner.model, is_model_wrapper(runner.model)
        if wrapped and not (
            isinstance(model, MMDistributedDataParallel) and isinstance(runner, Runner)
        ):
            kinds = f'{type(model).__name__} of {type(runner).__name__}'
            raise ValueError(
                f'PositionOnlyHook needs MMDistributedDataParallel of Runner, got {kinds}'
            )
        plain = unwrapped(model)
        trained = freeze_all_but_position(plain)
        self._with_statistics = statistics_of(plain)
        if wrapped:  # DDP expects a gradient of every parameter that had one when it was built
            runner.model = runner.wrap_model(runner.cfg.get('model_wrapper_cfg'), plain)
        values = sum(plain.get_parameter(name).numel() for name in trained)
        runner.logger.info(
            f'PositionOnlyHook: {len(trained)} tensors of {values} values are trained ({trained[0]}, ...), '
            'everything else is frozen'
        )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        """Hold running statistics: ``train()`` may have been called since."""
        hold_statistics(self._with_statistics)
