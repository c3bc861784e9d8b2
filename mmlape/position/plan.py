"""What a network receives of its position for a layout, and when it may be kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mmlape.kept import Store

Plan = TypeVar('Plan')


class PositionPlan(NamedTuple):
    """What is added where, and passed on. Every entry is ``(1, P + H * W, C)``, or None for nothing.

    Attributes:
        stem: Added to the tokens once, before the first layer.
        stream: Per layer, added to the residual stream that enters the layer.
        attention: Per layer, added to the normalised tokens that enter its attention.
        passed: Where position stands after the last layer, for a stage that follows; None where tokens carry it.
    """

    stem: Tensor | None
    stream: tuple[Tensor | None, ...]
    attention: tuple[Tensor | None, ...]
    passed: Tensor | None = None

    @classmethod
    def nothing(cls, depth: int) -> PositionPlan:
        """The plan of ``depth`` layers without position."""
        return cls(None, (None,) * depth, (None,) * depth)


class PlanKeeper(nn.Module):
    """A module that derives something from its parameters and a layout: in every pass anew, since parameters change in
    more ways than a module can see (optimizers, averages of weights, ``functional_call``), and once per layout after
    :meth:`switch_to_deploy`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: Store | None = None
        self.register_load_state_dict_post_hook(_forget)

    def switch_to_deploy(self) -> None:
        """Keep what is derived from now on (as many layouts as fit into 32 MiB); parameters must not change any more.

        Loading, moving and converting the module start afresh.
        """
        self._store = Store()

    def planned(self, key: Hashable, compute: Callable[[], Plan]) -> Plan:
        """``compute()``; of a deployed module, what it gave for ``key`` before."""
        if self._store is None:
            return compute()
        # What autocast does to a plan stays with it.
        autocast = (torch.is_autocast_enabled('cpu'), torch.is_autocast_enabled('cuda'))
        with torch.no_grad():
            return self._store.get((key, *autocast), compute)

    def _apply(self, *args, **kwargs) -> PlanKeeper:
        # Called by .to(), .half(), .cuda(): what was kept lives elsewhere.
        _forget(self)
        return super()._apply(*args, **kwargs)


def _forget(keeper: PlanKeeper, _: object = None) -> None:
    if keeper._store is not None:
        keeper._store.clear()
