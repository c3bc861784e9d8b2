"""What a check of a data set found, in words a user can act on."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ['Findings', 'listed']


def listed(items: Iterable, limit: int = 5) -> str:
    """Quote at most ``limit`` items and say how many more there are: ``'a', 'b' and 3 more``."""
    items = list(items)
    text = ', '.join(repr(item) for item in items[:limit])
    return f'{text} and {len(items) - limit} more' if len(items) > limit else text


class Findings:
    """Problems (training must not start) and notes (what upstream skips, and why) of one data set.

    Args:
        title (str): Which data set, for the first line of the report.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.problems: list[str] = []
        self.notes: list[str] = []

    def problem(self, text: str) -> None:
        """Record something that training must not start with."""
        self.problems.append(text)

    def note(self, text: str) -> None:
        """Record something worth knowing that does not stop the training."""
        self.notes.append(text)

    def count(self, items: list, what: str, *, problem: bool = False) -> None:
        """Record ``N what: examples`` when there is at least one item."""
        if items:
            record = self.problem if problem else self.note
            record(f'{len(items)} {what}: {listed(items)}')

    def report(self, lines: list[str]) -> str:
        """The title followed by ``lines`` as a list."""
        return '\n'.join([self.title, *(f'  - {line}' for line in lines)])
