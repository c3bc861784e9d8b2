"""The account of a load, what happened to every entry on either side, and the errors of checkpoints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Patterns of names with one reason that are listed one by one; more of them become one line.
_LISTED_PATTERNS = 8
_LISTED_PROBLEMS = 8
_LISTED_NAMES = 3


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, holds more than data, is damaged, or does not fit."""


class MissingCheckpointError(FileNotFoundError, CheckpointError):
    """A checkpoint that is not there."""


class DownloadError(ConnectionError, CheckpointError):
    """A checkpoint that cannot be downloaded."""


@dataclass
class LoadReport:
    """What a conversion did.

    Attributes:
        source: Name of the source format.
        model: Class name of the model.
        matched: Entries of the model taken over as they are.
        resized: Entries of the model taken over after resizing; the text says from what to what.
        filled: Entries of the model that the source has no tensor for but fixes all the same; the text says how.
        fresh: Entries of the model that keep the model's own values; the text says why.
        left_out: Entries of the source that the model has no place for; the text says why.
        problems: Why the source cannot be such a model's. A conversion with any is refused.
        sizes: Number of values of every entry of the part of the model that the source describes.
        whole: Whether the model is a whole detector or segmentor, whose parts are accounted for one by one.
        part: What the names of the described part begin with: ``'vit.'`` for the ViT of an adapter, or ``''``.
    """

    source: str
    model: str = ''
    matched: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    filled: dict[str, str] = field(default_factory=dict)
    fresh: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    whole: bool = False
    part: str = ''

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
        return _fraction(self.taken, self.sizes)

    def parts(self) -> dict[str, float]:
        """Share of the values that came from the source for each part: ``backbone``, ``neck``, ... of a whole model,
        or ``''`` for all there is."""
        if not self.whole:
            return {'': self.matched_fraction}
        sizes: dict[str, dict[str, int]] = {}
        for name, size in self.sizes.items():
            sizes.setdefault(name.partition('.')[0], {})[name] = size
        taken = set(self.taken)
        return {part: _fraction(taken & set(own), own) for part, own in sizes.items()}

    def demand(self, min_matched: float) -> None:
        """Refuse what does not fit.

        Args:
            min_matched: Least share of the values of each part that must come from the source.

        Raises:
            CheckpointError: A ``ValueError``, if there is any problem, or a part is below ``min_matched``.
        """
        if self.problems:
            hint = '' if self.matched_fraction > 0.5 else f'Is {self.source!r} the right source?\n'
            raise CheckpointError(
                f'the weights (source {self.source!r}) do not fit the {self.model}:\n'
                f'{_listed(self.problems)}\n{hint}' + '\n'.join(self._summary())
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
        for kind in ('resized', 'filled', 'fresh'):
            entries = getattr(self, kind)
            lines += [f'  {kind}: {name}: {why}' for name, why in _grouped(entries)]
        lines += [f'  unused in the source: {name}: {why}' for name, why in _grouped(self.left_out)]
        return '\n'.join(lines)

    def _summary(self) -> list[str]:
        """How much was taken, of all and of each part."""
        taken = set(self.taken)
        lines = [
            f'{len(taken)} of {len(self.sizes)} entries ({_percent(self.matched_fraction)} of the values)'
            f' taken from source {self.source!r}'
        ]
        if self.whole:
            for part, fraction in self.parts().items():
                names = [name for name in self.sizes if name.partition('.')[0] == part]
                count = len(taken.intersection(names))
                lines.append(
                    f'  {part}: {count} of {len(names)} ({_percent(fraction)} of the values)'
                )
        return lines


def _fraction(taken: set[str] | list[str], sizes: Mapping[str, int]) -> float:
    return sum(sizes[name] for name in taken) / max(sum(sizes.values()), 1)


def _percent(fraction: float) -> str:
    """Rounded down, so that 100.0 % is all of them."""
    return f'{math.floor(fraction * 1000) / 10:.1f}%'


def _grouped(entries: Mapping[str, str]) -> list[tuple[str, str]]:
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
            parts = dict.fromkeys(re.sub(r'\..*', '.*', name) for name in names)
            patterns = {', '.join(parts): names}
        lines += [(_counted(pattern, same), why) for pattern, same in patterns.items()]
    return lines


def _counted(pattern: str, names: list[str]) -> str:
    return names[0] if len(names) == 1 else f'{pattern} ({len(names)} entries)'


def _listed(problems: list[str]) -> str:
    rest = len(problems) - _LISTED_PROBLEMS
    lines = [f'  * {problem}' for problem in problems[:_LISTED_PROBLEMS]]
    return '\n'.join(lines + ([f'  * and {rest} more'] if rest > 0 else []))


def listed(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    names = list(names)
    rest = len(names) - _LISTED_NAMES
    return ', '.join(names[:_LISTED_NAMES]) + (f' and {rest} more' if rest > 0 else '')
