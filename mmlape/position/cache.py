"""Plans are kept per grid while gradients are off: position then costs nothing per image."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from mmlape.kept import may_keep

from .embedding import Grid

Plan = TypeVar('Plan')


class PlanCache:
    """The last plans by grid; a plan is whatever a module derives from its parameters for a grid.

    A plan depends on parameters and on the grid alone. It is computed anew in every forward pass with gradients; such
    a pass also forgets what was kept, because an optimizer step may follow it. The owner must call :meth:`clear`
    whenever its parameters may have changed otherwise: loading, moving, switching between training and evaluation
    (which MMEngine's EMA hook does after swapping weights).

    Args:
        max_grids: Grids that are kept, the least recently used is dropped. Default 32.
    """

    def __init__(self, max_grids: int = 32) -> None:
        self.max_grids = max_grids
        self.final = False
        self._plans: OrderedDict[tuple, object] = OrderedDict()

    def get(self, grid: Grid, compute: Callable[[], Plan]) -> Plan:
        """The plan of ``grid``, from ``compute`` where none is kept."""
        if torch.is_grad_enabled() and not self.final:
            self.clear()
            return compute()
        if not may_keep():
            return compute()
        # What autocast does to a plan stays with it.
        key = (tuple(grid), torch.is_autocast_enabled('cpu'), torch.is_autocast_enabled('cuda'))
        if key not in self._plans:
            with torch.inference_mode(False), torch.no_grad():
                self._plans[key] = compute()
        self._plans.move_to_end(key)
        while len(self._plans) > self.max_grids:
            self._plans.popitem(last=False)
        return self._plans[key]

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()

    def __deepcopy__(self, memo: dict) -> PlanCache:
        """A copy of the owner has other parameters: it starts with nothing kept."""
        copied = PlanCache(self.max_grids)
        copied.final = self.final
        return copied


class PlanKeeper(nn.Module):
    """A module with a :class:`PlanCache`, and with everything that clears it.

    Attributes:
        plans: What is kept. Not in the state dict.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plans = PlanCache()
        self.register_load_state_dict_post_hook(_forget_plans)

    def fold(self) -> None:
        """Take plans from what is kept from now on, gradients or not."""
        self.plans.final = True

    def train(self, mode: bool = True) -> PlanKeeper:
        """Switch between training and evaluation; what was kept is forgotten."""
        super().train(mode)
        self.plans.clear()
        return self

    def _apply(self, *args, **kwargs) -> PlanKeeper:
        # Called by .to(), .half(), .cuda(): what was kept lives elsewhere.
        self.plans.clear()
        return super()._apply(*args, **kwargs)


def fold_plans(model: nn.Module) -> None:
    """:meth:`PlanKeeper.fold` for every part of ``model`` that keeps plans."""
    for module in model.modules():
        if isinstance(module, PlanKeeper):
            module.fold()


def _forget_plans(keeper: PlanKeeper, _: object) -> None:
    """After loading, what was kept is stale."""
    keeper.plans.clear()
