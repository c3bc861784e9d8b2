"""Long ListOps (Long-Range Arena, ICLR 2021): nested operations on lists of digits, whose result is the label.

An expression is a digit or ``[OPERATOR argument ... argument ]``; the operators are ``MIN``, ``MAX``, ``MED`` (the
median, rounded down) and ``SM`` (the sum modulo 10). A built folder has the files of the published release, one
expression and its result in a line, with a tab between them after a line of names::

    ROOT/annotations/basic_{train,val,test}.tsv
    ROOT/list_ops.json                            the options it was built with; written last
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .building import FolderKind, build_once, check_integers, check_pair

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    'MIN': min,
    'MAX': max,
    'MED': lambda values: int(statistics.median(values)),
    'SM': lambda values: sum(values) % 10,
}
END = ']'
# The ids of tokens; 0 is padding.
IDS = {
    token: number
    for number, token in enumerate((*map(str, range(10)), *(f'[{name}' for name in OPERATORS), END), 1)
}  # fmt: skip
# Where a node may be either, the share of operators.
OPERATOR_SHARE = 0.25
# The version is to be raised by every change after which the same options give other files.
KIND = FolderKind(name='list operations', marker='list_ops.json', version=1)
# Expressions that are drawn before one of the right length is given up.
TRIES = 1_000_000
HEAD = 'Source\tTarget'


class _TooLongError(Exception):
    """An expression has more tokens than it may have."""


def build_list_ops(
    root: str | os.PathLike,
    *,
    num_train: int = 96_000,
    num_val: int = 2000,
    num_test: int = 2000,
    length: tuple[int, int] = (501, 1999),
    max_depth: int = 10,
    max_args: int = 10,
    seed: int = 0,
) -> Path:
    """Build Long ListOps in ``root``, or find that it is there already; nothing is downloaded.

    The grammar is the published one. A node is an operator with probability 1/4, else a digit; at depth ``max_depth``
    it is always a digit. Operators and digits are drawn evenly, and so is the number of arguments, from 2 to
    ``max_args``. Expressions whose length is out of range are thrown away, and no expression is there twice, in any
    split. The same options give the same files. The folder appears complete or not at all; one that was built with
    other options, or from which files are missing, is replaced.

    Args:
        root: The folder to build; see the module's text for what it then holds.
        num_train: Number of training expressions.
        num_val: Number of validation expressions.
        num_test: Number of test expressions.
        length: Least and greatest number of tokens, closing brackets included. Published: more than 500, fewer than
            2000.
        max_depth: Depth of the deepest digits; the root has depth 1, so that operators nest up to 9 deep by default.
        max_args: Most arguments of an operator, at least 2.
        seed: Seed of everything random.

    Returns:
        ``root`` as a path.

    Raises:
        TypeError, ValueError: An option has a wrong type or is out of range, or too few expressions have such a length.
        FileExistsError: ``root`` holds something else.
    """
    options = check_integers(
        num_train=(num_train, 1, 10_000_000),
        num_val=(num_val, 1, 10_000_000),
        num_test=(num_test, 1, 10_000_000),
        max_depth=(max_depth, 2, 100),
        max_args=(max_args, 2, 1000),
        seed=(seed, 0, 2**32 - 1),
    )
    options['length'] = check_pair('length', length, 1, 1_000_000)
    return build_once(Path(root), KIND, options, lambda folder: _build(folder, options))


def draw_expression(
    rng: random.Random, max_depth: int = 10, max_args: int = 10, max_length: int = 10**9
) -> tuple[list[str], int] | None:
    """Tokens of an expression and its result, see :func:`build_list_ops`; None for one of more than ``max_length``
    tokens. The same state of ``rng`` gives the same expression."""
    tokens: list[str] = []

    def draw(depth: int) -> int:
        if len(tokens) >= max_length:
            raise _TooLongError
        if depth >= max_depth or rng.random() >= OPERATOR_SHARE:
            digit = rng.randrange(10)
            tokens.append(str(digit))
            return digit
        name = rng.choice(list(OPERATORS))
        tokens.append(f'[{name}')
        values = [draw(depth + 1) for _ in range(rng.randint(2, max_args))]
        tokens.append(END)
        return OPERATORS[name](values)

    try:
        result = draw(1)
    except _TooLongError:
        return None
    return (tokens, result) if len(tokens) <= max_length else None


def _build(folder: Path, options: dict[str, Any]) -> None:
    (folder / 'annotations').mkdir()
    seen: set[str] = set()
    for split in ('train', 'val', 'test'):
        rng = random.Random(f'{options["seed"]}, {split}')
        lines = [_line(rng, options, seen) for _ in range(options[f'num_{split}'])]
        path = folder / 'annotations' / f'basic_{split}.tsv'
        path.write_text('\n'.join([HEAD, *lines, '']), encoding='utf-8')


def _line(rng: random.Random, options: dict[str, Any], seen: set[str]) -> str:
    """A new expression of the right length, and its result."""
    shortest, longest = options['length']
    for _ in range(TRIES):
        drawn = draw_expression(rng, options['max_depth'], options['max_args'], longest)
        if drawn is None or len(drawn[0]) < shortest:
            continue
        source = ' '.join(drawn[0])
        if source not in seen:
            seen.add(source)
            return f'{source}\t{drawn[1]}'
    raise ValueError(
        f'length={tuple(options["length"])!r}: {TRIES} expressions of max_depth={options["max_depth"]} and '
        f'max_args={options["max_args"]} had no new one of such a length'
    )
