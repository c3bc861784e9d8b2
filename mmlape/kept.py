"""Tensors that are made once and kept, as many as fit into a number of bytes, where they can serve a later call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Made = TypeVar('Made')
Arguments = ParamSpec('Arguments')
# Of one store: enough for the indices, sinusoids and reference points of hundreds of grids.
MAX_BYTES = 32 * 2**20


def may_keep() -> bool:
    """Whether tensors that are made now can serve later calls.

    Those of a graph that is being traced (``torch.compile``, ``torch.export``) cannot: they would become constants of
    that graph. Nor can those that have no values, made inside PyTorch's ``FakeTensorMode``, or those that belong to a
    transform of ``torch.func`` and end with it.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return type(torch.empty(0)) is torch.Tensor


class Store:
    """The values used last, as long as their tensors have at most ``max_bytes`` together; a larger one is not kept.

    Args:
        max_bytes: Default 32 MiB.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What is kept under ``key``, else ``make()``, which is then kept. It is shared: do not write into it."""
        if not may_keep():
            return make()
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value  # the last used
            return value
        # A tensor made in inference mode could not serve a later training step.
        with torch.inference_mode(False):
            value = self._values[key] = make()
        while self.num_bytes() > self.max_bytes and self._values:
            self._values.popitem(last=False)
        return value

    def num_bytes(self) -> int:
        """Bytes that are kept."""
        sizes = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for value in list(self._values.values())
            for tensor in _tensors(value)
        }
        return sum(sizes.values())

    def clear(self) -> None:
        """Forget all of it."""
        self._values.clear()

    def __len__(self) -> int:
        return len(self._values)


def kept(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Decorator: keep results of a function of hashable arguments in a :class:`Store`, its attribute ``store``.

    The function must depend on its arguments alone, never on parameters; a device among them keeps devices apart.
    """
    store = Store()

    @wraps(make)
    def get(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        return store.get((args, *kwargs.items()), lambda: make(*args, **kwargs))

    get.store = store  # type: ignore[attr-defined]  # a function with an attribute
    return get


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _tensors(entry)
