"""Configs as text that is data: whatever names and paths hold, reading the text runs nothing."""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.config import Config

_WIDTH = 100
_USED = ('dict', 'float')  # names that the text itself uses


def config_text(config: Mapping[str, Any]) -> str:
    """A config as Python: an assignment for each entry, sorted by name.

    MMEngine's ``pretty_text`` quotes keys without escaping them, and its reader replaces what is between two braces
    (``{{$NAME:default}}``), also by code; here, texts have no two braces in a row.

    Args:
        config: Names, with dicts, lists, tuples, texts, numbers, truth values and None.

    Raises:
        TypeError: If it holds anything else.
        ValueError: If a name at the top cannot be assigned to.
    """
    for name in config:
        if not _is_name(name) or name in _USED:
            raise ValueError(f'{name!r} cannot be a name in a config')
    return ''.join(f'{name} = {value_text(config[name])}\n' for name in sorted(config))


def value_text(value: Any, depth: int = 0) -> str:
    """A value of a config as Python, on several lines where one is too long; ``depth``: of its indentation."""
    if isinstance(value, dict):
        items, (start, end) = _items(value, depth)
    elif isinstance(value, (list, tuple)):
        start, end = '[]' if isinstance(value, list) else '()'
        items = [value_text(each, depth + 1) for each in value]
        if isinstance(value, tuple) and len(items) == 1:
            return f'({items[0]},)'
    else:
        return _scalar(value)
    line = f'{start}{", ".join(items)}{end}' if len(items) < _WIDTH else '\n'
    if len(line) + 4 * depth < _WIDTH and '\n' not in line:
        return line
    space = '    ' * (depth + 1)
    return f'{start}\n' + ''.join(f'{space}{item},\n' for item in items) + f'{"    " * depth}{end}'


def _items(value: Mapping[Any, Any], depth: int) -> tuple[list[str], tuple[str, str]]:
    """The entries of a dict, its type first, with what stands around them."""
    keys = sorted(value, key=lambda key: (key != 'type', str(key)))
    texts = [value_text(value[key], depth + 1) for key in keys]
    if value and all(map(_is_name, keys)):
        return [f'{key}={text}' for key, text in zip(keys, texts)], ('dict(', ')')
    return [f'{_scalar(key)}: {text}' for key, text in zip(keys, texts)], ('{', '}')


def _is_name(key: Any) -> bool:
    # Python normalises identifiers that are not ASCII: another name would be read.
    plain = isinstance(key, str) and key.isascii() and key.isidentifier()
    return plain and not keyword.iskeyword(key)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return without_templates(repr(str(value)))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f'float({str(float(value))!r})'
    if value is None or type(value) in (bool, int):
        return repr(value)
    raise TypeError(f'a config holds data, got {value!r:.80}')


def without_templates(text: str) -> str:
    """Python in whose string literals no two braces stand in a row; the strings stay the same."""
    return text.replace('{{', r'{\x7b')


class PlainConfig(Config):
    """A config whose text, in work dirs, checkpoints and reports, is :func:`config_text`."""

    @property
    def pretty_text(self) -> str:
        """The config as Python; MMEngine's text for what is more than data, such as classes of a pure Python config."""
        try:
            return config_text(self.to_dict())
        except (TypeError, ValueError):
            return super().pretty_text


def read_config_text(text: str) -> PlainConfig:
    """The config in a text of ours, in which nothing is replaced before it is read."""
    with TemporaryDirectory() as folder:
        path = Path(folder, 'config.py')
        path.write_text(text, encoding='utf-8')
        return as_plain(
            Config.fromfile(path, use_predefined_variables=False, use_environment_variables=False)
        )


def as_plain(config: Config) -> PlainConfig:
    """The same config, with a text that is data."""
    if isinstance(config, PlainConfig):
        return config
    plain = PlainConfig.__new__(PlainConfig)
    for name, value in vars(config).items():
        object.__setattr__(plain, name, value)
    return plain
