"""What MMEngine puts into its checkpoints beside weights, and as what it is read: data, whatever the file says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pickle import UnpicklingError
from typing import Any

import mmengine
import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from mmlape.compatibility import numbers

_ARRAYS = ('_log_history', '_count_history')
_NUMBERS = 'biuf'
_TYPES = '?bBhHiIlLqQefdSU'


class PlainHistory(HistoryBuffer):
    """A training history out of a file: MMEngine's would take over any attribute, and statistics for all histories.

    What is read becomes a ``HistoryBuffer`` as soon as it is filled.
    """

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        arrays = {name: state.get(name) for name in _ARRAYS}
        longest = state.get('max_length', 1_000_000)
        if not isinstance(longest, int) or not all(map(_is_plain_array, arrays.values())):
            raise UnpicklingError('a training history holds something that is no number')
        self._set_default_statistics()
        self.__dict__.update(arrays, max_length=longest)
        self.__class__ = HistoryBuffer


def statistic_of_history(owner: Any, name: str) -> Any:
    """What a training history in a checkpoint may use of ``getattr``: its own statistics, such as its mean.

    Raises:
        UnpicklingError: It asks for anything else; all of ``getattr`` would open every door that ``weights_only``
            closes.
    """
    # An instance, because the class learns of its statistics when the first one is made.
    known = HistoryBuffer()._statistics_methods
    if not (owner is HistoryBuffer or owner is PlainHistory) or name not in known:
        raise UnpicklingError(f'a checkpoint must not read {name!r} of {owner!r}')
    return getattr(owner, name)


def no_bytes() -> bytes:
    """The content of an empty array."""
    return b''


def parts_of_history() -> list:
    """What a training history in a checkpoint is made of, for ``torch.serialization.safe_globals`` (torch >= 2.6)."""
    core = np._core if hasattr(np, '_core') else np.core
    dtypes = {type(np.dtype(kind)) for kind in _TYPES}
    arrays = [np.ndarray, np.dtype, core.multiarray._reconstruct, core.multiarray.scalar]
    history = (PlainHistory, f'{HistoryBuffer.__module__}.{HistoryBuffer.__qualname__}')
    return [
        history,
        (statistic_of_history, 'builtins.getattr'),
        (no_bytes, 'builtins.bytes'),
        *arrays,
        *dtypes,
    ]


def allow_own_checkpoints() -> None:
    """Let torch >= 2.6 read the checkpoints that mmengine 0.10.7 itself has written, also for who calls ``torch.load``.

    That version calls it without ``weights_only``, whose default has become True since; torch then refuses the training
    history in the checkpoint. What the history is made of is declared safe; nothing is switched off.
    """
    if numbers(mmengine.__version__) < (0, 10, 8) and numbers(torch.__version__) >= (2, 6):
        torch.serialization.add_safe_globals(parts_of_history())


def check_arrays(values: Iterable[Any]) -> None:
    """Refuse NumPy arrays whose type a file has made up: reading a field of one may follow a forged pointer.

    Args:
        values: What was read; dicts, lists and tuples in it are searched.

    Raises:
        UnpicklingError: If there is one.
    """
    rest, seen = list(values), set()
    while rest:
        value = rest.pop()
        if isinstance(value, (dict, list, tuple, set)):
            if id(value) not in seen:
                seen.add(id(value))
                rest += value.values() if isinstance(value, dict) else value
        elif isinstance(value, (np.ndarray, np.generic)):
            if value.dtype != np.dtype(value.dtype.str) or value.dtype.fields is not None:
                raise UnpicklingError(f'an array of the type {value.dtype}')
            if value.dtype.hasobject and isinstance(value, np.ndarray):
                rest += value.tolist() if value.ndim else [value.item()]


def _is_plain_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS and not value.dtype.fields
