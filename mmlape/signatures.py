"""Options of a component against the signature of its constructor, whoever builds it: our registries, upstream's, or a
call in Python."""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any, TypeVar

from .checks import did_you_mean

Class = TypeVar('Class', bound=type)
_NAMES: dict[Any, str] = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'text',
    type(None): 'None',
    dict: 'a dict',
}
_MANY: dict[Any, str] = {int: 'integers', float: 'numbers', dict: 'dicts'}
_LISTS = (list, tuple, collections.abc.Sequence)


def checked_options(cls: Class) -> Class:
    """Decorator: let the constructor of ``cls``, and those of mmlape that it inherits, check options by annotations.

    A name that is no option is refused with the nearest one (TypeError), a value of another type than annotated too
    (TypeError; ``True`` is no number, and text is nothing but text), NaN and infinity where a number is wanted
    (ValueError). What a number may be is for the constructor to check. Annotations that are no simple types accept
    anything; classes outside mmlape are left alone.
    """
    for base in cls.__mro__:
        own = vars(base).get('__init__')
        if (
            base.__module__.partition('.')[0] == 'mmlape'
            and own is not None
            and not hasattr(own, '_checks_options')
        ):
            base.__init__ = _checking(own)  # type: ignore[misc]  # that is what this is for
    return cls


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise TypeError if ``value`` is not what the annotation ``hint`` says, ValueError if it is a number and not
    finite."""
    if float in _leaves(hint):
        for number in _leaf_values(value):
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f'{name} must be finite, got {value}')
    if not _conforms(value, hint):
        kind = type(value).__name__
        raise TypeError(f'{name} must be {described(hint)}, got {value!r} ({kind})')


def described(hint: Any) -> str:
    """An annotation in words: ``'an integer, a pair of integers or None'``."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    words = list(dict.fromkeys(map(_described, options)))
    if 'a number' in words and 'an integer' in words:
        words.remove('an integer')
    return ' or '.join([', '.join(words[:-1]), words[-1]]) if words[1:] else words[0]


def _checking(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that checks its arguments first."""
    parameters = list(inspect.signature(init).parameters.values())[1:]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    @cache
    def hints() -> dict[str, Any]:  # at the first call: modules may be half imported before
        return typing.get_type_hints(init)

    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = [] if takes_all else [name for name in kwargs if name not in names]
        if unknown:
            raise TypeError(
                f'{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}'
                f'{did_you_mean(unknown[0], names)}'
            )
        for name, value in (*zip(names, args), *kwargs.items()):
            if name in names and name in hints():
                check_type(name, value, hints()[name])
        init(self, *args, **kwargs)

    checked._checks_options = True  # type: ignore[attr-defined]  # a function with an attribute
    return checked


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _described(hint: Any) -> str:
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return ' or '.join(map(repr, inner))
    if origin in _LISTS:
        what = _MANY.get(inner[0] if inner else None)
        kind = 'a pair' if origin is tuple and len(inner) == 2 and inner[1] is not ... else 'a list'
        return f'{kind} of {what}' if what else kind
    if origin is collections.abc.Mapping:
        return 'a dict'
    return _NAMES.get(origin) or f'a {getattr(origin, "__name__", origin)}'


def _leaves(hint: Any) -> Iterator[Any]:
    """The simple types in an annotation."""
    inner = typing.get_args(hint)
    if not inner:
        yield hint
    for each in inner:
        yield from _leaves(each)


def _leaf_values(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _leaf_values(entry)
    else:
        yield value


def _conforms(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if _is_union(hint):
        return any(_conforms(value, each) for each in inner)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if origin in (int, float):
        kinds = (int, float) if origin is float else int
        return isinstance(value, kinds) and not isinstance(value, bool)
    if origin in _LISTS:
        return isinstance(value, (list, tuple)) and all(_fits(entry, inner) for entry in value)
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, Mapping)
    if origin is collections.abc.Callable:
        return callable(value)
    return isinstance(value, origin) if isinstance(origin, type) else True


def _fits(entry: Any, inner: Sequence[Any]) -> bool:
    """Whether an entry of a list is one of its types; a list without any takes everything."""
    types_ = [each for each in inner if each is not ...]
    return not types_ or any(_conforms(entry, each) for each in types_)
