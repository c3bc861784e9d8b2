"""Options as command lines give them: short names for configs, and numbers of layers as timm counts them."""

from __future__ import annotations

from collections.abc import Sequence

from mmlape.checks import check_option, check_positive_int
from mmlape.position import JOININGS, POSITIONS

Choice = str | dict | list | tuple | None


def named_options(position: Choice, joining: Choice) -> dict[str, dict | list]:
    """Configs of position and joining from short names, configs or lists of either; None is left out.

    Raises:
        ValueError: If a name is unknown.
    """
    given = dict(
        position=_resolve('position', position, POSITIONS),
        joining=_resolve('joining', joining, JOININGS),
    )
    return {name: value for name, value in given.items() if value is not None}


def _resolve(name: str, value: Choice, table: dict[str, dict]) -> dict | list | None:
    if isinstance(value, (list, tuple)):
        return [_resolve(name, entry, table) for entry in value]
    return dict(table[check_option(name, value, table)]) if isinstance(value, str) else value


def take_indices(count: int, indices: int | Sequence[int] | None) -> tuple[int, ...]:
    """Ascending indices among ``count`` layers: the last n for an integer, all for None, else those named.

    Raises:
        ValueError: If one does not exist.
        TypeError: If one is no integer.
    """
    if indices is None or isinstance(indices, int):
        taken = check_positive_int('indices', count if indices is None else indices, maximum=count)
        return tuple(range(count - taken, count))
    for index in indices:
        check_positive_int('indices', index, minimum=-count, maximum=count - 1)
    return tuple(sorted({index % count for index in indices}))
