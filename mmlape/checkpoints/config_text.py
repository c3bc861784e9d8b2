"""The text of a config that a checkpoint carries, which MMEngine executes: made data before it gets there."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from typing import Any

from mmlape.compatibility import PACKAGES

# `_base_` names files that would be executed; MMEngine keeps the others for itself.
_NOT_KEPT = {'_base_', 'dict', 'filename', 'text', 'pretty_text', 'env_variables'}
_IMPORTED = {'mmlape', *(package.module for package in PACKAGES)}
# MMEngine replaces what is between such braces before it parses the text, also by code.
_TEMPLATE = '{{'


def plain_config(text: Any) -> tuple[str | None, int]:
    """A config's text with nothing in it but assignments of literals and ``dict(...)``.

    ``custom_imports`` stays where it names OpenMMLab's packages, mmlape, and what is imported already.

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
        kept = [statement for statement in statements if _is_kept(statement)]
        dropped = len(statements) - len(kept)
        # Comments are left out together with whatever they may hold.
        if dropped or _TEMPLATE in text or '#' in text:
            text = '\n'.join(map(ast.unparse, kept))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, 1
    return (text if kept or not dropped else None), dropped


def make_configs_plain(checkpoint: Mapping[str, Any]) -> int:
    """Replace the texts of configs in what MMEngine's runner has saved, in place; returns how many statements were left
    out: MMEngine executes ``meta['config']`` to resume, and the others to build a model without a config."""
    hub = checkpoint.get('message_hub')
    runtime = hub.get('runtime_info') if isinstance(hub, Mapping) else None
    dropped = 0
    for owner, names in ((checkpoint.get('meta'), ('config', 'cfg')), (runtime, ('cfg',))):
        if not isinstance(owner, dict):
            continue
        for name in names:
            if name in owner:
                plain, count = plain_config(owner[name])
                dropped += count
                if plain is None:
                    del owner[name]
                else:
                    owner[name] = plain
    return dropped


def _is_kept(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or target.id in _NOT_KEPT:
        return False
    try:
        value = _value(statement.value)
    except (TypeError, ValueError):
        return False
    return _TEMPLATE not in ast.unparse(statement) and (
        target.id != 'custom_imports' or _only_known_modules(value)
    )


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


def _only_known_modules(imports: Any) -> bool:
    names = imports.get('imports') if isinstance(imports, dict) else None
    names = [names] if isinstance(names, str) else names
    return isinstance(names, list) and all(
        isinstance(name, str) and (name in sys.modules or name.partition('.')[0] in _IMPORTED)
        for name in names
    )
