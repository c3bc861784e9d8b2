"""What a checkpoint holds beside weights, made harmless: histories, arrays, texts of configs, and bombs."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pickle import UnpicklingError
from typing import Any

import mmengine
import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.registry import FUNCTIONS, Registry
from torch import Tensor

from mmlape.compatibility import PACKAGES, numbers

# `_base_` names files that would be executed; MMEngine keeps the others for itself.
_NOT_KEPT = {'_base_', 'dict', 'filename', 'text', 'pretty_text', 'env_variables'}
_PACKAGES = ('mmlape', *(package.module for package in PACKAGES))
# MMEngine replaces what is between such braces before it parses the text, also by code.
_TEMPLATE = '{{'
# By these keys, MMEngine and its toolboxes look classes up, or import what they name.
_NAMING = ('type', 'constructor', 'runner_type')
_SCOPES = ('default_scope', '_scope_')
# MMCV evaluates the type of a non-maximum suppression as Python.
_NMS = ('nms', 'soft_nms', 'nms_match', 'nms_rotated', 'nms_quadri', 'nms3d')

_ARRAYS = ('_log_history', '_count_history')
_NUMBERS = 'biuf'
_TYPES = '?bBhHiIlLqQefdSU'
# Far above what a training holds: items and levels of dicts and lists, bytes of tensors beyond their storages.
_MOST_ITEMS, _MOST_LEVELS, _MOST_EXPANDED = 10**7, 100, 2**28


def check_contents(content: Any) -> None:
    """Refuse what takes more than its file to handle, or that reading may follow a forged pointer.

    Shared dicts and lists count as often as they are met, tensors by their storages.

    Args:
        content: What was read; dicts, lists and tuples in it are searched.

    Raises:
        UnpicklingError: If there are too many items or levels; a tensor is larger than its storage, or not of numbers
            in a row (sparse, quantized, nested, without values); or the type of an array is made up.
    """
    _weigh(content, 0, {})


def _weigh(value: Any, level: int, seen: dict[int, tuple]) -> tuple[int, int, int]:
    """Items, bytes of tensors beyond their storages, and levels of a value; what was ``seen`` is not searched again."""
    if id(value) in seen:
        return seen[id(value)][1]
    weight = (1, 0, 0)
    if isinstance(value, (dict, list, tuple, set)):
        if level > _MOST_LEVELS:
            raise UnpicklingError('its dicts and lists are too deep')
        parts = value.values() if isinstance(value, dict) else value
        weights = [_weigh(part, level + 1, seen) for part in parts]
        items, expanded, levels = zip(weight, *weights)
        weight = sum(items), sum(expanded), max(levels) + 1
    elif isinstance(value, Tensor):
        weight = (1, _bytes_beyond_storage(value), 0)
    elif isinstance(value, (np.ndarray, np.generic)):
        if value.dtype != np.dtype(value.dtype.str) or value.dtype.fields is not None:
            raise UnpicklingError(f'an array of the type {value.dtype}')
        if value.dtype.hasobject and isinstance(value, np.ndarray):
            weight = _weigh(value.tolist() if value.ndim else [value.item()], level + 1, seen)
    else:
        return weight
    if weight[0] > _MOST_ITEMS or weight[2] > _MOST_LEVELS:
        raise UnpicklingError('its dicts and lists are too deep, or shared too often')
    if weight[1] > _MOST_EXPANDED:
        raise UnpicklingError('its tensors are larger than what they store')
    seen[id(value)] = value, weight  # with the value, so that no other one gets its id
    return weight


def _bytes_beyond_storage(value: Tensor) -> int:
    plain = value.layout == torch.strided and not (value.is_quantized or value.is_nested)
    if not plain or value.is_meta:
        raise UnpicklingError('a tensor in it is sparse, quantized, nested or without values')
    if any(side >= 2**48 for side in value.shape):  # empty ones may have any shape
        raise UnpicklingError(f'a tensor in it has the shape {tuple(value.shape)}')
    return max(value.numel() * value.element_size() - value.untyped_storage().nbytes(), 0)


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


def _is_plain_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS and not value.dtype.fields


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
    arrays = [np.ndarray, np.dtype, core.multiarray._reconstruct, core.multiarray.scalar]
    return [
        (PlainHistory, f'{HistoryBuffer.__module__}.{HistoryBuffer.__qualname__}'),
        (statistic_of_history, 'builtins.getattr'),
        (no_bytes, 'builtins.bytes'),
        *arrays,
        *{type(np.dtype(kind)) for kind in _TYPES},
    ]


def allow_own_checkpoints() -> None:
    """Let torch >= 2.6 read the checkpoints that mmengine 0.10.7 itself has written, also for who calls ``torch.load``.

    That version calls it without ``weights_only``, whose default has become True since; torch then refuses the training
    history in the checkpoint. What the history is made of is declared safe; nothing is switched off.
    """
    if numbers(mmengine.__version__) < (0, 10, 8) and numbers(torch.__version__) >= (2, 6):
        torch.serialization.add_safe_globals(parts_of_history())


def make_configs_plain(checkpoint: Mapping[str, Any]) -> int:
    """Replace the texts of configs in what MMEngine's runner has saved, in place; returns how many statements were left
    out: MMEngine executes ``meta['config']`` to resume, and the others to build a model without a config."""
    hub = checkpoint.get('message_hub')
    runtime = hub.get('runtime_info') if isinstance(hub, Mapping) else None
    dropped = 0
    for owner, names in ((checkpoint.get('meta'), ('config', 'cfg')), (runtime, ('cfg',))):
        for name in names:
            if isinstance(owner, dict) and name in owner:
                plain, count = plain_config(owner.pop(name))
                dropped += count
                if plain is not None:
                    owner[name] = plain
    return dropped


def plain_config(text: Any) -> tuple[str | None, int]:
    """A config's text with nothing in it but assignments of literals and ``dict(...)`` that name registered classes.

    ``type``, and whatever MMEngine looks up, must name a class that a registry has in its own table: of another name,
    MMEngine would import and call what it stands for. ``custom_imports`` stays where it names OpenMMLab's packages,
    mmlape, and what is imported already.

    Args:
        text: What a checkpoint says is the config of its training.

    Returns:
        The text, unchanged where it is such, and how many statements were left out; None where nothing is left or it
        cannot be parsed.
    """
    if not isinstance(text, str):
        return None, 1
    try:
        statements = ast.parse(text).body
        values = [_literal(statement) for statement in statements]
        _import_what_they_name(values)
        kept = [s for s, value in zip(statements, values) if value and _is_harmless(value)]
        dropped = len(statements) - len(kept)
        # Comments are left out together with whatever they may hold.
        if dropped or _TEMPLATE in text or '#' in text:
            text = '\n'.join(map(ast.unparse, kept))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, 1
    return (text if kept or not dropped else None), dropped


def _literal(statement: ast.stmt) -> dict[str, Any]:
    """The name and the value of an assignment of literals, as a dict; an empty one for any other statement."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return {'': None}
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return {}
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or target.id in _NOT_KEPT:
        return {}
    if _TEMPLATE in ast.unparse(statement):
        return {}
    try:
        value = _value(statement.value)
    except (TypeError, ValueError):
        return {}
    return {target.id: value} if target.id != 'custom_imports' or _imports_of(value) else {}


def _value(node: ast.expr | None) -> Any:
    """What an expression of literals and ``dict(...)`` says; nothing is executed.

    Raises:
        ValueError: If it is another expression.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else +value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_value(child) for child in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        merged: dict = {}
        for argument in node.args:
            merged.update(_value(argument))
        merged.update({word.arg: _value(word.value) for word in node.keywords})
        if None not in merged:
            return merged
    raise ValueError('an expression that is no literal')


def _imports_of(value: Any) -> list[str] | None:
    """The modules of ``custom_imports``; None where any is another package's and not imported yet."""
    names = value.get('imports') if isinstance(value, dict) else None
    names = [names] if isinstance(names, str) else names
    known = isinstance(names, list) and all(
        isinstance(name, str) and (name in sys.modules or name.partition('.')[0] in _PACKAGES)
        for name in names
    )
    return names if known else None


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    """All keys with their values in nested dicts and lists."""
    if isinstance(value, dict):
        yield from value.items()
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, (dict, list)):
            yield from _pairs(part)


def _is_harmless(value: dict[str, Any]) -> bool:
    scopes = [None, *_PACKAGES, *(registry.scope for registry in _registries())]
    for key, named in _pairs(value):
        if key in _SCOPES and named not in scopes:
            return False
        if key in _NAMING and isinstance(named, str) and not _is_registered(named):
            return False
        if key == 'warp_mode' and not re.fullmatch(r'cv2\.\w+', str(named)):  # MMDetection evals it
            return False
    return True


def _is_registered(name: str) -> bool:
    """Whether a name stands for a class in a registry's own table, or for an operator of MMCV's."""
    scope, _, bare = name.rpartition('.')
    for registry in _registries():
        found = registry.module_dict.get(bare) if scope in ('', registry.scope) else None
        # MMEngine fetches functions to collate a batch by name, and calls none of them.
        if isinstance(found, type) or (found is not None and registry is FUNCTIONS):
            return True
    ops = sys.modules.get('mmcv.ops')
    return name in _NMS or (not scope and isinstance(getattr(ops, bare, None), type))


def _registries() -> list[Registry]:
    """All registries of MMEngine and of the packages that are imported so far."""
    modules = [sys.modules.get(f'{package}.registry') for package in _PACKAGES]
    found = [each for module in modules if module for each in vars(module).values()]
    registries = [each for each in found if isinstance(each, Registry)]
    for registry in registries:
        registries += [child for child in registry.children.values() if child not in registries]
    return registries


def _import_what_they_name(values: list[dict[str, Any]]) -> None:
    """Import the known packages that a config names, so that their registries have their tables."""
    pairs = [pair for value in values for pair in _pairs(value) if isinstance(pair[1], str)]
    names = {named for key, named in pairs if key in _NAMING and not _is_registered(named)}
    if not names:
        return
    scopes = {named for key, named in pairs if key in _SCOPES}
    scopes |= {'mmengine', *(name.partition('.')[0] for name in names)}
    scopes |= {package for package in _PACKAGES if f'{package}.registry' in sys.modules}
    for scope in sorted(scopes.intersection(_PACKAGES) - {'mmcv'}):
        _fill_registries(scope)
    for value in values:
        for module in _imports_of(value.get('custom_imports')) or []:
            with contextlib.suppress(ImportError):
                import_module(module)


@functools.cache
def _fill_registries(scope: str) -> None:
    """Import the registries of a package, and what registers itself there."""
    with contextlib.suppress(ImportError):
        import_module(f'{scope}.registry')
        for registry in _registries():
            if registry.scope == scope:
                registry.import_from_location()
        import_module('mmcv.ops')
