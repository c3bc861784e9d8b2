"""What a checkpoint holds beside weights, made harmless: histories, arrays, texts of configs, and bombs."""

from __future__ import annotations

import ast
import contextlib
import math
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
from mmlape.registry import ChildRegistry

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

# Options by which a registered class runs what a file or an address holds, and what they must not be.
_UNSAFE = {
    'teacher_config': lambda value: isinstance(value, str),  # MMDetection executes this file
    'hierarchy_file': lambda value: value is not None,  # MMDetection unpickles it
    'trust_remote_code': bool,  # transformers runs what it downloads
    'decode_backend': lambda value: value == 'pickle',  # of images
}

_ARRAYS = ('_log_history', '_count_history')
_NUMBERS = 'biuf'
_TYPES = '?bBhHiIlLqQefdSU'
# Far above what a training holds: items and levels of dicts and lists, and bytes of tensors beyond some times those
# that they store: tied weights are views of one storage.
_MOST_ITEMS, _MOST_LEVELS, _MOST_EXPANDED, _MOST_VIEWS = 10**6, 100, 2**28, 4
# Types that PyTorch can hold and not compute with, not even copy.
_OPAQUE = re.compile('float4|bits')


def check_contents(content: Any) -> None:
    """Refuse (UnpicklingError) what takes more than its file to handle, or that reading may follow a forged pointer.

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
    """What a training history may use of ``getattr``: its own statistics, such as its mean. All of ``getattr`` would
    open every door that ``weights_only`` closes."""
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
    """Let torch >= 2.6 read the checkpoints that mmengine 0.10.7 itself has written: that version does not pass
    ``weights_only``, so that torch refuses the training history. What that is made of is declared safe."""
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
    """A config's text with nothing in it but assignments of literals and ``dict(...)`` that name registered classes;
    None where nothing is left. And how many statements were left out.

    ``type``, and whatever MMEngine looks up, must name a class that a registry has in its own table: of another name,
    MMEngine would import and call what it stands for. ``custom_imports`` stays where it names OpenMMLab's packages,
    mmlape, and what is imported already.
    """
    if not isinstance(text, str):
        return None, 1
    try:
        statements = ast.parse(text).body
        values = [_literal(statement) for statement in statements]
        _fill_registries(text, values)
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
        value = ast.literal_eval(_Displays().visit(statement.value))
    except (TypeError, ValueError):
        return {}
    return {target.id: value} if target.id != 'custom_imports' or _imports_of(value) else {}


class _Displays(ast.NodeTransformer):
    """``dict(a=1)`` as ``{'a': 1}``, which ``ast.literal_eval`` takes."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        dicts = [argument for argument in node.args if isinstance(argument, ast.Dict)]
        named = isinstance(node.func, ast.Name) and node.func.id == 'dict'
        if not named or len(dicts) < len(node.args):
            return node
        keys = [key for each in dicts for key in each.keys]
        values = [value for each in dicts for value in each.values]
        keys += [ast.Constant(word.arg) if word.arg else None for word in node.keywords]
        return ast.Dict(keys, values + [word.value for word in node.keywords])


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
        if isinstance(part, (dict, list, tuple)):
            yield from _pairs(part)


def _is_harmless(value: dict[str, Any]) -> bool:
    scopes = [None, *_PACKAGES, *(registry.scope for registry in _registries())]
    for key, named in _pairs(value):
        if key in _SCOPES and named not in scopes:
            return False
        if key in _NAMING and isinstance(named, str) and not _is_registered(named):
            return False
        if key in _UNSAFE and _UNSAFE[key](named):
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


def _fill_registries(text: str, values: list[dict[str, Any]]) -> None:
    """Import the known packages that a config names, so that their registries have their tables."""
    modules = [f'{package}.registry' for package in _PACKAGES if package in text]
    for value in values:
        modules += _imports_of(value.get('custom_imports')) or []
    for module in (*modules, 'mmcv.ops'):
        with contextlib.suppress(ImportError):
            import_module(module)
    for registry in _registries():
        with contextlib.suppress(ImportError):
            registry.import_from_location()
        if isinstance(registry, ChildRegistry):
            registry.import_named(text)
