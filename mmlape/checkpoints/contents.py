"""Contents of a checkpoint beside weights, made harmless: histories, arrays, texts of configs, decompression bombs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import mmengine
import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmlape.compatibility import numbers

from .report import CheckpointError
from .strangers import plain_config

_ARRAYS = ('_log_history', '_count_history')
_NUMBERS = 'biuf'
_TYPES = '?bBhHiIlLqQefdSU'
# Limits on items, nesting and tensor bytes, far above any real checkpoint. Tensors may view a few times the bytes that
# are stored, because tied weights share a storage.
_MOST_ITEMS, _MOST_LEVELS, _MOST_EXPANDED, _MOST_VIEWS = 10**6, 100, 2**28, 4
_NEW = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.tensor)
# Types that PyTorch can hold and not compute with, not even copy.
_OPAQUE = re.compile('float4|bits')


def check_contents(content: Any) -> None:
    """Refuse decompression bombs and tensors whose storage is out of bounds (UnpicklingError).

    Shared dicts and lists count as often as they are met.
    """
    waiting, items, bytes_of_tensors, stored = [(content, 0)], 0, 0, 0
    storages: set[int] = set()
    while waiting:
        value, level = waiting.pop()
        if isinstance(value, Tensor):
            bytes_of_tensors += _bytes_of(value)
            storage = value.untyped_storage()
            if storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                stored += storage.nbytes()
            if bytes_of_tensors > _MOST_VIEWS * stored + _MOST_EXPANDED:
                raise UnpicklingError('its tensors are larger than what they store')
        elif isinstance(value, (np.ndarray, np.generic)):
            if value.dtype != np.dtype(value.dtype.str) or value.dtype.fields is not None:
                raise UnpicklingError(f'an array of the type {value.dtype}')
            if value.dtype.hasobject:
                waiting.append((value.tolist(), level + 1))
        elif isinstance(value, (dict, list, tuple, set)):
            items += len(value)
            if items > _MOST_ITEMS or level > _MOST_LEVELS:
                raise UnpicklingError('its dicts and lists are too deep, or shared too often')
            parts = value.values() if isinstance(value, dict) else value
            waiting += [(part, level + 1) for part in parts]


def _bytes_of(value: Tensor) -> int:
    plain = value.layout == torch.strided and not (value.is_quantized or value.is_nested)
    if not plain or value.is_meta or _OPAQUE.search(str(value.dtype)):
        raise UnpicklingError(
            'a tensor in it is sparse, quantized, nested, of 4 bits or without values'
        )
    if math.prod(max(side, 1) for side in value.shape) >= 2**48:  # empty ones may have any shape
        raise UnpicklingError(f'a tensor in it has the shape {tuple(value.shape)}')
    return value.numel() * value.element_size()


class BuildLimit(TorchFunctionMode):
    """A context in which a model is built: CheckpointError if it needs far more tensors, or bytes, than its weights.

    Args:
        weights: The file of its weights.
    """

    def __init__(self, weights: Path) -> None:
        super().__init__()
        # Buffers and what initialisation needs come on top; weights may be stored in half precision or eight bits.
        self._left, self._bytes = 20_000, 8 * weights.stat().st_size + 2**30

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch; count what makes new tensors."""
        if function not in _NEW:
            return function(*args, **(kwargs or {}))
        try:
            made = function(*args, **(kwargs or {}))
        except RuntimeError as error:
            if 'alloc' not in str(error):
                raise
            self._bytes = -1
        else:
            self._left, self._bytes = self._left - 1, self._bytes - made.nbytes
        if self._left < 0 or self._bytes < 0:
            raise CheckpointError(
                'the model of this config is far larger than the weights beside it'
            )
        return made


class PlainHistory(HistoryBuffer):
    """A training history out of a file: MMEngine's would take over any attribute, and statistics for all histories.

    What is read becomes a ``HistoryBuffer`` as soon as it is filled.
    """

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        arrays = {name: state.get(name) for name in _ARRAYS}
        longest = state.get('max_length', 1_000_000)
        if not isinstance(longest, int) or not all(map(_is_plain_array, arrays.values())):
            raise UnpicklingError('a training history holds something that is not a number')
        self._set_default_statistics()
        self.__dict__.update(arrays, max_length=longest)
        self.__class__ = HistoryBuffer


def _is_plain_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS and not value.dtype.fields


def statistic_of_history(owner: Any, name: str) -> Any:
    """Return the method of a training history's statistic, such as its mean. All of ``getattr`` would undo the
    protection of ``weights_only``."""
    # An instance, because the class learns of its statistics when the first one is made.
    known = HistoryBuffer()._statistics_methods
    if not (owner is HistoryBuffer or owner is PlainHistory) or name not in known:
        raise UnpicklingError(f'a checkpoint must not read {name!r} of {owner!r}')
    return getattr(owner, name)


def no_bytes() -> bytes:
    """The content of an empty array."""
    return b''


def parts_of_history() -> list:
    """Return the types and functions of a training history, for ``torch.serialization.safe_globals``."""
    core = np._core if hasattr(np, '_core') else np.core
    arrays = [np.ndarray, np.dtype, core.multiarray._reconstruct, core.multiarray.scalar]
    return [
        (PlainHistory, f'{HistoryBuffer.__module__}.{HistoryBuffer.__qualname__}'),
        (statistic_of_history, 'builtins.getattr'),
        (no_bytes, 'builtins.bytes'),
        *arrays,
        *{type(np.dtype(kind)) for kind in _TYPES},
    ]


def allow_own_checkpoints() -> None:
    """Let torch read the checkpoints that mmengine 0.10.7 itself has written: that version does not pass
    ``weights_only``, so that torch refuses the training history. What that is made of is declared safe."""
    if numbers(mmengine.__version__) < (0, 10, 8):
        torch.serialization.add_safe_globals(parts_of_history())


def make_configs_plain(checkpoint: Mapping[str, Any]) -> list[str]:
    """Replace the texts of configs in what MMEngine's runner has saved by :func:`plain_config`, in place; returns why
    texts were left out: MMEngine executes ``meta['config']`` to resume, and the others to build a model.
    """
    reasons = []
    for owner, names in _places_of_configs(checkpoint):
        for name in names:
            if name in owner:
                plain, reason = plain_config(owner.pop(name))
                if plain is not None:
                    owner[name] = plain
                elif reason is not None and reason not in reasons:
                    reasons.append(reason)
    return reasons


def config_text_of(checkpoint: Mapping[str, Any]) -> str | None:
    """The text of the config that MMEngine's runner has saved, as it is."""
    found = [o[name] for o, names in _places_of_configs(checkpoint) for name in names if name in o]
    texts = [text for text in found if isinstance(text, str)]
    return texts[0] if texts else None


def _places_of_configs(checkpoint: Mapping[str, Any]) -> list[tuple[dict, tuple[str, ...]]]:
    hub = checkpoint.get('message_hub')
    runtime = hub.get('runtime_info') if isinstance(hub, Mapping) else None
    places = ((checkpoint.get('meta'), ('cfg', 'config')), (runtime, ('cfg',)))
    return [(owner, names) for owner, names in places if isinstance(owner, dict)]
