"""Checks of users' options: each returns the value, or raises with its name, the value and what is accepted."""

from __future__ import annotations

import collections.abc
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

Option = TypeVar('Option', str, int)
_NAMES: dict[Any, str] = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'text',
    type(None): 'None',
    dict: 'a dict',
    collections.abc.Mapping: 'a dict',
}
_MANY: dict[Any, str] = {int: 'integers', float: 'numbers', dict: 'dicts'}
_LISTS = (list, tuple, collections.abc.Sequence)
_UNIONS = (typing.Union, types.UnionType)
# Files of checkpoints that are folders: Hugging Face's and torch.distributed's. MMEngine's are named `iter_8.pth`.
_SHARDS = ('*.safetensors', '*.bin', '*.index.json', '*.distcp', '*.pt')


def nearest(name: Any, known: Iterable[Any], likeness: float = 0.6) -> str | None:
    """The closest match among ``known``, ignoring case, of at least this ``likeness`` (1: equal), or None."""
    by_lower = {str(each).lower(): str(each) for each in known}
    found = get_close_matches(str(name).lower(), by_lower, 1, likeness)
    return by_lower[found[0]] if found else None


def type_name(config: Mapping[str, Any]) -> str:
    """The ``type`` of a config without its scope, also where it is a class; '' for none."""
    kind = config.get('type', '')
    return (kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """A hint for an unknown name: ``"; did you mean 'eps'?"``, or an empty string."""
    close = nearest(name, known)
    return '' if close is None else f'; did you mean {close!r}?'


def existing_checkpoint(text: str) -> str:
    """``text`` if it is a checkpoint's file, a folder (sharded) or an address; else ValueError, with the nearest names.

    Of a file with an unusual ending, the first bytes decide.
    """
    path = Path(text)
    if '://' in text:
        return text
    if path.is_dir():
        if path.suffix == '.pth' or any(next(path.glob(files), None) for files in _SHARDS):
            return text
        inside = sorted(each.name for each in path.glob('*.pth'))
        hint = (
            f': name a file in it, such as {inside[-1]}' if inside else ', and holds no checkpoint'
        )
        raise ValueError(f'{text!r} is a folder{hint}')
    if path.exists():
        if path.is_file() and not _may_be_checkpoint(path):
            raise ValueError(f'{text!r} is no checkpoint')
        return text
    present = sorted(each.name for each in path.parent.glob('*.pth'))
    near = get_close_matches(path.name, present, 3, 0.3) or present[:3]
    hint = f'; in {path.parent} there are {", ".join(near)}' if near else ''
    if not path.parent.is_dir():
        hint = f'; there is no folder {path.parent} either'
    raise ValueError(f'there is no checkpoint {text!r}{hint}')


def _may_be_checkpoint(path: Path) -> bool:
    """Whether a file is named so, or is a ZIP archive, a pickle, a tar archive, safetensors, or an index of these."""
    if path.suffix in ('.pth', '.pt', '.bin', '.ckpt', '.safetensors'):
        return True
    with path.open('rb') as file:
        head = file.read(512)
    return head[:2] == b'PK' or head[:1] in (b'\x80', b'{') or head[8:9] == b'{' or b'ustar' in head


def check_target(path: str | Path, overwrite: bool = False) -> Path:
    """The path of a checkpoint to write; ValueError for another suffix, or if it exists."""
    path = Path(path).expanduser()
    if path.suffix not in ('.pth', '.safetensors'):
        raise ValueError(f'a checkpoint to write ends in .pth or .safetensors, got {str(path)!r}')
    if path.is_dir() or (path.exists() and not overwrite):
        raise ValueError(f'{str(path)!r} exists already')
    return path


def check_positive_int(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None
) -> int:
    """Return ``value`` if it is an integer in ``minimum..maximum``, else raise TypeError or ValueError."""
    if type(value) is not int:
        _check_kind(name, value, int)
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        accepted = f'{minimum} to {maximum}' if maximum is not None else f'at least {minimum}'
        raise ValueError(f'{name} must be {accepted}, got {value}')
    return number


def check_divisor(name: str, value: Any, whole: str, number: int) -> int:
    """Return ``value`` if it is a positive integer that divides the ``number`` called ``whole``, else raise."""
    if number % check_positive_int(name, value):
        raise ValueError(f'{name} must divide {whole}, got {name}={value}, {whole}={number}')
    return int(value)


def check_bool(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, else raise TypeError."""
    if type(value) is not bool:
        _check_kind(name, value, bool)
    return value


def check_grid(name: str, value: Any) -> tuple[int, int]:
    """Return ``(height, width)`` from one integer or a pair of them, else raise."""
    pair = (value, value) if isinstance(value, Integral) else value
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f'{name} must be an integer or a pair (height, width), got {value!r}')
    height, width = (check_positive_int(name, side) for side in pair)
    return height, width


def check_eps(value: Any) -> float:
    """Return an ``eps`` if it is a finite number above 0, else raise."""
    return check_number('eps', value, above=0)


def check_rate(name: str, value: Any, *, with_one: bool = False) -> float:
    """Return ``value`` if it is a number in [0, 1), or [0, 1] ``with_one``, else raise."""
    if type(value) is not float:
        _check_kind(name, value, float)
    number = float(value)
    if not (0 <= number < 1 or (with_one and number == 1)):
        raise ValueError(f'{name} must be in [0, 1{"]" if with_one else ")"}, got {value}')
    return number


def check_number(
    name: str, value: Any, *, above: float | None = None, minimum: float | None = None
) -> float:
    """Return ``value`` if it is a finite number, greater than ``above`` or at least ``minimum``, else raise."""
    if type(value) is not float:
        _check_kind(name, value, float)
    number, accepted, in_range = float(value), 'finite', True
    if above is not None:
        accepted, in_range = f'finite and greater than {above:g}', number > above
    if minimum is not None:
        accepted, in_range = f'finite and at least {minimum:g}', number >= minimum
    if not (math.isfinite(number) and in_range):
        raise ValueError(f'{name} must be {accepted}, got {value}')
    return number


def are_numbers(values: Iterable[Any], most: float = sys.float_info.max) -> bool:
    """Whether all are numbers from ``-most`` to ``most``, by default the largest float; integers may be larger."""
    return all(isinstance(value, (int, float)) and -most <= value <= most for value in values)


def check_option(name: str, value: Any, accepted: Collection[Option]) -> Option:
    """Return ``value`` if it is one of ``accepted``, else raise ValueError listing them."""
    if not isinstance(value, Hashable) or value not in accepted:
        raise ValueError(
            f'{name} must be one of {sorted(accepted)}, got {value!r}{did_you_mean(value, accepted)}'
        )
    return value  # type: ignore[return-value]  # its type is that of what is accepted


def check_keys(name: str, value: Any, required: Collection[str]) -> dict:
    """Return ``value`` if it is a dict with exactly the ``required`` keys, else raise."""
    if not isinstance(value, dict):  # no other mapping, which annotations accept
        raise TypeError(f'{name} must be a dict, got {value!r} ({type(value).__name__})')
    unknown, missing = set(value) - set(required), set(required) - set(value)
    if unknown or missing:
        hint = did_you_mean(min(unknown), required) if unknown else ''
        raise ValueError(
            f'{name} must have the keys {sorted(required)}: '
            f'unknown {sorted(unknown)}, missing {sorted(missing)}{hint}'
        )
    return value


def check_layers(name: str, value: Any, depth: int) -> tuple[int, ...]:
    """Return ascending layer indices from None (all), a number of first layers, or a list of indices, else raise."""
    if value is None or isinstance(value, Integral):
        count = check_positive_int(name, depth if value is None else value, maximum=depth)
        return tuple(range(count))
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f'{name} must be None, an integer or a list of integers, got {value!r}')
    for layer in value:
        check_positive_int(name, layer, minimum=0, maximum=depth - 1)
    if not value or len(set(value)) != len(value):
        raise ValueError(f'{name} must name different layers, at least one, got {value}')
    return tuple(sorted(value))


def check_outputs(out_indices: Any, count: int, kind: str) -> tuple[int, ...]:
    """Ascending indices of ``count`` ``kind`` (layers, stages) from one or a list; negative ones count from the end."""
    several = isinstance(out_indices, Sequence) and not isinstance(out_indices, str)
    listed = list(out_indices) if several else [out_indices]
    for index in listed:
        check_positive_int('out_indices', index, minimum=-count, maximum=count - 1)
    resolved = sorted({index % count for index in listed})
    if not listed or len(resolved) != len(listed):
        raise ValueError(f'out_indices must name different {kind}, got {out_indices}')
    return tuple(resolved)


def check_options(target: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check options against the signature of ``target``, a class or function.

    Ranges of numbers are checked by the constructor. Annotations other than simple types accept anything. A class's
    attribute ``published`` has names of other code, and what to write instead.

    Raises:
        TypeError: If a name is unknown, or a value has not the annotated type (``True`` is not a number).
        ValueError: If a number is NaN or infinite.
    """
    known, open_ended = _signature(target)
    for name, value in options.items():
        if name in known:
            check_type(name, value, known[name])
        elif not open_ended:
            here = getattr(target, 'published', {}).get(name)
            told = did_you_mean(name, known) or f'; there are {sorted(known)}'
            hint = told if here is None else f'; here, write {here}' if here else '; leave it out'
            title = getattr(target, '__name__', target)
            raise TypeError(f'{title} got an unexpected keyword argument {name!r}{hint}')


def options_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Annotations by the names of the options of ``target``; ``Any`` without an annotation and outside of mmlape."""
    return _signature(target)[0]


@cache
def _signature(target: Any) -> tuple[dict[str, Any], bool]:
    """Annotations of options, and whether other names are accepted too (``**options`` of somebody else's class)."""
    found: dict[str, Any] = {}
    bound = isinstance(target, type)
    bases = target.__mro__[:-1] if bound else ()  # without object
    inits = [vars(base)['__init__'] for base in bases if '__init__' in vars(base)]
    for init in inits if bound else [target]:
        ours = str(init.__module__).partition('.')[0] == 'mmlape'
        hints = typing.get_type_hints(init) if ours else {}
        several = None
        for parameter in list(inspect.signature(init).parameters.values())[bound:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                several = hints.get(parameter.name, ...)
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                found.setdefault(parameter.name, hints.get(parameter.name, Any))
        if several is None:
            return found, False
        (unpacked, *_) = typing.get_args(several) or (None,)
        if typing.is_typeddict(unpacked):  # **options: Unpack[...]
            return typing.get_type_hints(unpacked) | found, False
        if not ours:
            return found, True
    return found, True


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise TypeError if ``value`` does not conform to the annotation ``hint``, ValueError for NaN and infinity."""
    _check_kind(name, value, hint)
    numbers = value if isinstance(value, (list, tuple)) else (value,)
    if hint is not Any and any(_is_number(n) and not math.isfinite(n) for n in numbers):
        raise ValueError(f'{name} must be finite, got {value}')


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Raise TypeError if ``value`` does not conform to the annotation ``hint``.

    The checks above call it only for values of another type: a network is built by hundreds of them.
    """
    if not _conforms(value, hint):
        kind = type(value).__name__
        raise TypeError(f'{name} must be {described(hint)}, got {value!r} ({kind})')


def described(hint: Any) -> str:
    """An annotation in words: ``'an integer, a pair of integers or None'``."""
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    words = list(dict.fromkeys(map(_described, options)))
    if 'a number' in words and 'an integer' in words:
        words.remove('an integer')
    return ' or '.join([', '.join(words[:-1]), words[-1]]) if words[1:] else words[0]


def _described(hint: Any) -> str:
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return ' or '.join(map(repr, inner))
    if origin in _LISTS:
        what = _MANY.get(inner[0] if inner else None)
        kind = 'a pair' if origin is tuple and len(inner) == 2 and inner[1] is not ... else 'a list'
        return f'{kind} of {what}' if what else kind
    return _NAMES.get(origin) or f'a {getattr(origin, "__name__", origin)}'


def _conforms(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _UNIONS:
        return any(_conforms(value, each) for each in inner)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if origin in (int, float):
        return _is_number(value, Integral if origin is int else Real)
    if origin in _LISTS:
        entries = [each for each in inner if each is not ...]
        listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return listed and all(not entries or any(_conforms(v, e) for e in entries) for v in value)
    if origin is dict:
        return isinstance(value, Mapping)
    if origin is collections.abc.Callable:
        return callable(value)
    return hint is Any or not isinstance(origin, type) or isinstance(value, origin)


def _is_number(value: Any, kind: type = Real) -> bool:
    """Whether it is a number, also of NumPy; True and False are not."""
    return isinstance(value, kind) and not isinstance(value, bool)
