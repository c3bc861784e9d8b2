"""Batches and configs as plain data, and back: what ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from torch import Tensor

__all__ = ['literal_config', 'plain', 'restored', 'tensors_in']

_CLASS = '<class>'
_ARRAY, _SCALAR, _UNKNOWN = 'array', 'scalar', 'unknown'
# Structures of MMDetection that are no data elements: their attributes are the arguments of their constructors.
_PARTS = {
    'BaseBoxes': ('tensor',),
    'BitmapMasks': ('masks', 'height', 'width'),
    'PolygonMasks': ('masks', 'height', 'width'),
}


def plain(value: Any) -> Any:
    """Copy a batch into tensors (on the CPU), numbers, strings, lists, tuples and dicts.

    Data elements (``DetDataSample``, ``SegDataSample``, ``InstanceData``, ...), boxes, masks and arrays become dicts
    that name their class. What else there is becomes a dict that :func:`restored` refuses.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor).cpu().clone()
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [plain(entry) for entry in value]
        return entries if isinstance(value, list) else tuple(entries)
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biuf':
        # As bytes: torch does not have all types of numpy.
        raw = torch.from_numpy(np.frombuffer(value.tobytes(), dtype=np.uint8).copy())
        return {_CLASS: _ARRAY, 'dtype': value.dtype.str, 'shape': value.shape, 'data': raw}
    if isinstance(value, np.generic):
        return {_CLASS: _SCALAR, 'dtype': value.dtype.str, 'data': value.item()}
    name = f'{type(value).__module__}.{type(value).__qualname__}'
    if isinstance(value, BaseDataElement):
        meta, data = dict(value.metainfo_items()), dict(value.items())
        return {_CLASS: name, 'meta': plain(meta), 'data': plain(data)}
    parts = _parts_of(type(value))
    if parts:
        return {_CLASS: name, 'parts': [plain(getattr(value, part)) for part in parts]}
    return {_CLASS: _UNKNOWN, 'type': name}


def restored(value: Any) -> Any:
    """What :func:`plain` was given. Classes are taken from modules that are imported already; nothing is imported.

    Raises:
        ValueError: If something is of a class that is not there, or that is none of those that batches are made of.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(restored(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    kind = value.get(_CLASS)
    if kind is None:
        return {key: restored(entry) for key, entry in value.items()}
    if kind == _ARRAY:
        flat = np.frombuffer(value['data'].numpy().tobytes(), dtype=value['dtype'])
        return flat.reshape(value['shape']).copy()
    if kind == _SCALAR:
        return np.dtype(value['dtype']).type(value['data'])
    if kind == _UNKNOWN:
        raise ValueError(f'the batch holds a {value["type"]}, which cannot be kept in a file')
    module, _, name = str(kind).rpartition('.')
    cls = getattr(sys.modules.get(module), name, None)
    if inspect.isclass(cls) and 'parts' in value and _parts_of(cls):
        return cls(*restored(value['parts']))
    if not (inspect.isclass(cls) and issubclass(cls, BaseDataElement)):
        raise ValueError(
            f'the batch holds a {kind}, which is not there: name its module in custom_imports'
        )
    element: BaseDataElement = cls()
    element.set_metainfo(restored(value['meta']))
    element.set_data(restored(value['data']))
    return element


def literal_config(cfg: Config) -> dict:
    """A config as literal data: dicts, lists, tuples, numbers and strings; classes and functions by their names."""
    return _literal(cfg.to_dict())


def tensors_in(value: Any, path: str = '', *, samples: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a batch or of a module's output with its path: ``('inputs[0]', ...)``.

    Args:
        value: Where to look: dicts, lists, tuples, data elements, boxes.
        path: What ``value`` is called.
        samples: Whether to look into data elements and boxes. Default True.
    """
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from tensors_in(entry, f'{path}.{key}' if path else str(key), samples=samples)
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from tensors_in(entry, f'{path}[{index}]', samples=samples)
    elif samples and isinstance(value, BaseDataElement):
        yield from tensors_in(dict(value.items()), path)
    elif samples and 'tensor' in _parts_of(type(value)):
        yield path, value.tensor


def _parts_of(cls: type) -> tuple[str, ...]:
    names = (base.__name__ for base in cls.__mro__ if base.__module__.startswith('mmdet.'))
    return next((_PARTS[name] for name in names if name in _PARTS), ())


def _literal(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {str(key): _literal(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        entries = [_literal(entry) for entry in value]
        return tuple(entries) if isinstance(value, tuple) else entries
    if inspect.isclass(value) or inspect.isroutine(value):
        return f'{value.__module__}.{value.__qualname__}'
    return str(value)
