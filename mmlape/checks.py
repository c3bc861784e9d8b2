"""Checks of what users pass in: each returns the value, or raises with its name, the value and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

Option = TypeVar('Option', str, int)


def nearest(name: Any, known: Iterable[Any], likeness: float = 0.6) -> str | None:
    """The one of ``known`` that ``name`` is most like (1 for equal), whatever the case of letters; None for none."""
    by_lower = {str(each).lower(): str(each) for each in known}
    found = get_close_matches(str(name).lower(), by_lower, 1, likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """The end of a message about a name that is not among ``known``: ``"; did you mean 'eps'?"``, or nothing."""
    close = nearest(name, known)
    return '' if close is None else f'; did you mean {close!r}?'


def check_positive_int(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None
) -> int:
    """Return ``value`` if it is an integer in ``minimum..maximum``, else raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'{name} must be an integer, got {value!r} ({type(value).__name__})')
    if value < minimum or (maximum is not None and value > maximum):
        accepted = f'{minimum} to {maximum}' if maximum is not None else f'at least {minimum}'
        raise ValueError(f'{name} must be {accepted}, got {value}')
    return value


def check_bool(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, else raise TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f'{name} must be True or False, got {value!r}')
    return value


def check_grid(name: str, value: Any) -> tuple[int, int]:
    """Return ``(height, width)`` from one integer or a pair of them, else raise."""
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f'{name} must be an integer or a pair (height, width), got {value!r}')
    height, width = (check_positive_int(name, side) for side in pair)
    return height, width


def check_eps(value: Any) -> float:
    """Return ``value`` if it is a finite number above 0, else raise: what is added to a variance."""
    return check_number('eps', value, above=0)


def check_rate(name: str, value: Any, *, with_one: bool = False) -> float:
    """Return ``value`` if it is a number in [0, 1), or [0, 1] ``with_one``, else raise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f'{name} must be a number, got {value!r} ({type(value).__name__})')
    if not (0 <= value < 1 or (with_one and value == 1)):
        raise ValueError(f'{name} must be in [0, 1{"]" if with_one else ")"}, got {value}')
    return float(value)


def check_number(
    name: str, value: Any, *, above: float | None = None, minimum: float | None = None
) -> float:
    """Return ``value`` if it is a finite number, greater than ``above`` or at least ``minimum`` where that is given,
    else raise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f'{name} must be a number, got {value!r} ({type(value).__name__})')
    too_small = (above is not None and value <= above) or (minimum is not None and value < minimum)
    if not math.isfinite(value) or too_small:
        accepted = 'finite' if above is None else f'finite and greater than {above:g}'
        accepted = accepted if minimum is None else f'finite and at least {minimum:g}'
        raise ValueError(f'{name} must be {accepted}, got {value}')
    return float(value)


def check_option(name: str, value: Any, accepted: Collection[Option]) -> Option:
    """Return ``value`` if it is one of ``accepted``, else raise ValueError listing them."""
    if not isinstance(value, Hashable) or value not in accepted:
        raise ValueError(
            f'{name} must be one of {sorted(accepted)}, got {value!r}{did_you_mean(value, accepted)}'
        )
    return value  # type: ignore[return-value]  # its type is that of what is accepted


def check_keys(name: str, value: Any, required: Collection[str]) -> dict:
    """Return ``value`` if it is a dict with exactly the ``required`` keys, else raise."""
    if not isinstance(value, dict):
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
    if value is None or isinstance(value, int):
        count = check_positive_int(name, depth if value is None else value, maximum=depth)
        return tuple(range(count))
    if not isinstance(value, (list, tuple)):
        raise TypeError(f'{name} must be None, an integer or a list of integers, got {value!r}')
    for layer in value:
        check_positive_int(name, layer, minimum=0, maximum=depth - 1)
    if not value or len(set(value)) != len(value):
        raise ValueError(f'{name} must name different layers, at least one, got {value}')
    return tuple(sorted(value))


def check_outputs(out_indices: Any, count: int, kind: str) -> tuple[int, ...]:
    """Ascending indices of ``count`` ``kind`` (layers, stages) from one or a list; negative ones count from the end."""
    listed = list(out_indices) if isinstance(out_indices, (list, tuple)) else [out_indices]
    for index in listed:
        check_positive_int('out_indices', index, minimum=-count, maximum=count - 1)
    resolved = sorted({index % count for index in listed})
    if not listed or len(resolved) != len(listed):
        raise ValueError(f'out_indices must name different {kind}, got {out_indices}')
    return tuple(resolved)
