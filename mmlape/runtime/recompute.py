"""Blocks that are computed again in the backward pass, with state that counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Made = TypeVar('Made')


class _Pass(NamedTuple):
    """A pass and the answers of :func:`once_per_pass` in it: those of the first pass are replayed or recorded."""

    replay: Iterator | None
    records: tuple[list, ...]


class _Passes(threading.local):
    """The passes that this thread is in, the innermost last; backward passes of a GPU have threads of their own."""

    def __init__(self) -> None:
        self.stack: list[_Pass] = []


_PASSES = _Passes()


def once_per_pass(make: Callable[[], Made]) -> Made:
    """``make()``; in the recomputation of a block, what it returned in the block's first pass.

    For what changes a module's state, or depends on state that has changed since: running statistics. What is returned
    is kept until the backward pass, so it should be small and without a graph.

    Raises:
        RuntimeError: If a recomputation asks more often than the first pass did, as after a change from training to
            evaluation or back in between.
    """
    if torch.compiler.is_compiling() or not _PASSES.stack:
        return make()
    replay, records = _PASSES.stack[-1]
    if replay is None:
        made = make()
    else:
        try:
            made = next(replay)
        except StopIteration:
            raise RuntimeError(
                'a block changed between its first pass and its recomputation: '
                'call model.train() and model.eval() after the backward pass'
            ) from None
    for record in records:
        record.append(made)
    return made


def recomputed(module: nn.Module, *args: Any) -> Any:
    """``module(*args)``, of which only the arguments are kept for the backward pass, if there will be one.

    Token norms with running statistics (``keeps_statistics``) count the batch once. Blocks inside of such blocks may be
    recomputed as well, and there may be several backward passes.
    """
    if not torch.is_grad_enabled():
        return module(*args)
    if torch.compiler.is_compiling() or not keeps_statistics(module):
        return checkpoint(module, *args, use_reentrant=False)
    return checkpoint(module, *args, use_reentrant=False, context_fn=_first_and_again)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a pass of it changes running statistics."""
    return module.training and any(
        getattr(part, 'keeps_statistics', False) for part in module.modules()
    )


def _first_and_again() -> tuple[_Recorded, _Recorded]:
    """Contexts of a block's first pass and of its recomputations, which share a record."""
    record: list = []
    return _Recorded(record, again=False), _Recorded(record, again=True)


class _Recorded:
    """A pass that notes what is made, or ``again`` answers from the record; it may be entered any number of times."""

    def __init__(self, record: list, again: bool) -> None:
        self.record, self.again = record, again

    def __enter__(self) -> None:
        entered = _Pass(iter(self.record), ())
        if not self.again:  # inside of another block's pass, that block's record stays complete too
            replay, records = _PASSES.stack[-1] if _PASSES.stack else (None, ())
            entered = _Pass(replay, (*records, self.record))
        _PASSES.stack.append(entered)

    def __exit__(self, *error: Any) -> None:
        _PASSES.stack.pop()
