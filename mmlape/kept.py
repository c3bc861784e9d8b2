"""Tensors that depend on a grid alone are made once and kept, where they can serve a later call."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import torch

Made = TypeVar('Made')


def may_keep() -> bool:
    """Whether tensors that are made now can serve later calls.

    Those of a graph that is being traced (``torch.compile``, ``torch.export``) cannot: they would become constants of
    that graph. Nor can those that have no values, made inside PyTorch's ``FakeTensorMode``.
    """
    return not torch.compiler.is_compiling() and type(torch.empty(0)) is torch.Tensor


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Decorator: keep the last 64 results of a function of hashable arguments.

    The result is shared between callers: do not write into it. ``cache_clear`` and ``cache_info`` are those of
    ``functools.lru_cache``.
    """

    @lru_cache(maxsize=64)
    def keep(*args) -> Made:
        # A tensor made in inference mode could not serve a later training step.
        with torch.inference_mode(False):
            return make(*args)

    @wraps(make)
    def get(*args) -> Made:
        return keep(*args) if may_keep() else make(*args)

    vars(get).update(cache_clear=keep.cache_clear, cache_info=keep.cache_info)
    return get
