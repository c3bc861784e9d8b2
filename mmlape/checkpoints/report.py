"""The account of a load, what happened to every entry on either side, and the errors of checkpoints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Patterns of names with one reason that are listed one by one; more of them become one line.
_LISTED_PATTERNS = 8
_LISTED_PROBLEMS = 8


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, holds more than data, is damaged, or does not fit."""


class MissingCheckpointError(FileNotFoundError, CheckpointError):
    """A checkpoint that is not there."""


class ContentError(TypeError, CheckpointError):
    """A checkpoint that holds something else than named tensors."""


class DownloadError(ConnectionError, CheckpointError):
    """A checkpoint that cannot be downloaded."""


@dataclass
class LoadReport:
    """Report of a conversion: every entry of the model and of the source, by name."""

    source: str  # name of the source format
    model: str = ''  # class name of the model
    # Entries of the model: taken over as they are, after resizing (from what to what), or not in the source, which
    # fixes them all the same (how); and those that keep the model's own values (why).
    matched: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    filled: dict[str, str] = field(default_factory=dict)
    fresh: dict[str, str] = field(default_factory=dict)
    # Entries of the source without a place (why), and why the source cannot be such a model's: then it is refused.
    left_out: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    # Number of values of every entry of the part of the model that the source describes.
    sizes: dict[str, int] = field(default_factory=dict)
    whole: bool = False  # a detector or segmentor, whose parts are accounted for one by one
    part: str = ''  # prefix of names of the described part: 'vit.' for the ViT of an adapter

    @property
    def taken(self) -> list[str]:
        """Entries of the model that came from the source, in any way."""
        return [*self.matched, *self.resized, *self.filled]

    @property
    def unused(self) -> list[str]:
        """Entries of the source that the model has no place for."""
        return sorted(self.left_out)

    @property
    def matched_fraction(self) -> float:
        """Share of the values of the described part that came from the source, 0 to 1."""
        return self._fraction(self.sizes)

    def parts(self) -> dict[str, float]:
        """Share of the values that came from the source for each part: ``backbone``, ``neck``, ... of a whole model,
        or ``''`` for all there is."""
        return {part: self._fraction(names) for part, names in self._names().items()}

    def _names(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for name in self.sizes:
            names.setdefault(name.partition('.')[0] if self.whole else '', []).append(name)
        return names

    def _fraction(self, names: Iterable[str]) -> float:
        taken = sum(self.sizes[name] for name in set(self.taken).intersection(names))
        return taken / max(sum(map(self.sizes.__getitem__, names)), 1)

    def demand(self, min_matched: float) -> None:
        """Refuse what does not fit.

        Args:
            min_matched: Least share of the values of each part that must come from the source.

        Raises:
            CheckpointError: A ``ValueError``, if there is any problem, or a part is below ``min_matched``.
        """
        if self.problems:
            lines = [f'  * {problem}' for problem in self.problems[:_LISTED_PROBLEMS]]
            if len(self.problems) > _LISTED_PROBLEMS:
                lines.append(f'  * and {len(self.problems) - _LISTED_PROBLEMS} more')
            if self.matched_fraction <= 0.5:
                lines.append(f'Is {self.source!r} the right source?')
            raise CheckpointError(
                f'the weights (source {self.source!r}) do not fit the {self.model}:\n'
                + '\n'.join(lines + self._summary())
            )
        for part, fraction in self.parts().items():
            if fraction < min_matched:
                raise CheckpointError(
                    f'only {_percent(fraction)} of the values{f" of the {part}" if part else ""} come '
                    f'from the source, at least {min_matched:.0%} are asked for (min_matched). '
                    f'Is {self.source!r} the right source?\n{self}'
                )

    def __str__(self) -> str:
        lines = self._summary()
        kinds = {kind: getattr(self, kind) for kind in ('resized', 'filled', 'fresh')}
        for kind, entries in {**kinds, 'unused in the source': self.left_out}.items():
            lines += [f'  {kind}: {line}' for line in _grouped(entries)]
        return '\n'.join(lines)

    def _summary(self) -> list[str]:
        """How much was taken, of all and of each part."""
        taken = set(self.taken)
        share = f'{_percent(self.matched_fraction)} of the values'
        lines = [
            f'{len(taken)} of {len(self.sizes)} entries ({share}) taken from source {self.source!r}'
        ]
        for part, names in self._names().items() if self.whole else ():
            share = f'{_percent(self._fraction(names))} of the values'
            lines.append(f'  {part}: {len(taken.intersection(names))} of {len(names)} ({share})')
        return lines


def _percent(fraction: float) -> str:
    """Rounded down, so that 100.0 % is all of them."""
    return f'{math.floor(fraction * 1000) / 10:.1f}%'


def _grouped(entries: Mapping[str, str]) -> list[str]:
    """Entries with one reason whose names differ in numbers alone on one line; many such by their first parts."""
    reasons: dict[str, list[str]] = {}
    for name, why in entries.items():
        reasons.setdefault(why, []).append(name)
    lines = []
    for why, names in reasons.items():
        patterns: dict[str, list[str]] = {}
        for name in names:
            patterns.setdefault(re.sub(r'(?<=\.)\d+(?=\.)', '*', name), []).append(name)
        if len(patterns) > _LISTED_PATTERNS:
            patterns = {', '.join(dict.fromkeys(re.sub(r'\..*', '.*', n) for n in names)): names}
        for pattern, same in patterns.items():
            what = same[0] if len(same) == 1 else f'{pattern} ({len(same)} entries)'
            lines.append(f'{what}: {why}')
    return lines


def listed(names: Iterable[str], limit: int = 3) -> str:
    """The first ``limit`` of some names, and how many more there are."""
    names = list(names)
    rest = len(names) - limit
    return ', '.join(names[:limit]) + (f' and {rest} more' if rest > 0 else '')
