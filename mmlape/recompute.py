"""Blocks that are computed again in the backward pass, with state that counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Made = TypeVar('Made')


class _Pass(threading.local):
    """What the pass that this thread is in does with the answers of :func:`once`."""

    record: list | None = None
    replay: Iterator | None = None


_PASS = _Pass()


def once(make: Callable[[], Made]) -> Made:
    """``make()``; in the recomputation of a block, what it returned in the block's first pass.

    For what changes a module's state, or depends on state that has changed since: running statistics.
    """
    if _PASS.replay is not None:
        return next(_PASS.replay)
    made = make()
    if _PASS.record is not None:
        _PASS.record.append(made)
    return made


def recomputed(module: nn.Module, *args: Any) -> Any:
    """``module(*args)``, of which only the arguments are kept for the backward pass, if there will be one."""
    if not torch.is_grad_enabled():
        return module(*args)
    if torch.compiler.is_compiling() or not _keeps_statistics(module):
        return checkpoint(module, *args, use_reentrant=False)
    return checkpoint(module, *args, use_reentrant=False, context_fn=_first_and_again)


def _keeps_statistics(module: nn.Module) -> bool:
    return module.training and any(
        getattr(part, 'keeps_statistics', False) for part in module.modules()
    )


def _first_and_again() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Contexts of a block's first pass and of its recomputation, which share a record."""
    record: list = []
    return _recording(record), _replaying(record)


@contextmanager
def _recording(record: list) -> Iterator[None]:
    before, _PASS.record = _PASS.record, record
    try:
        yield
    finally:
        _PASS.record = before


@contextmanager
def _replaying(record: list) -> Iterator[None]:
    before, _PASS.replay = _PASS.replay, iter(record)
    try:
        yield
    finally:
        _PASS.replay = before
