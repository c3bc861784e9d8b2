"""The account of a load: what happened to every entry on either side."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """What a conversion did.

    Attributes:
        source: Name of the source format.
        matched: Entries of the model taken over as they are, with their number of values.
        resized: Entries of the model taken over after resizing; the text says from what to what.
        fresh: Entries of the model that keep the model's own values; the text says why.
        unused: Entries of the source that the model has no place for.
        sizes: Number of values of every entry of the part of the model that the source describes.
    """

    source: str
    matched: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    fresh: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def matched_fraction(self) -> float:
        """Share of the values of the described part that came from the source, 0 to 1."""
        taken = sum(self.sizes[name] for name in [*self.matched, *self.resized])
        return taken / max(sum(self.sizes.values()), 1)

    def __str__(self) -> str:
        total = len(self.sizes)
        taken = len(self.matched) + len(self.resized)
        lines = [
            f"{taken} of {total} entries ({self.matched_fraction:.1%} of the values) taken from "
            f"source {self.source!r}"
        ]
        lines += [f'  resized: {name}: {how}' for name, how in self.resized.items()]
        lines += [f'  fresh: {name}: {why}' for name, why in _grouped(self.fresh).items()]
        if self.unused:
            lines.append(f'  unused in the source: {", ".join(self.unused)}')
        return '\n'.join(lines)


def _grouped(entries: dict[str, str]) -> dict[str, str]:
    """One line for each first part of a name with the same reason, with the number of entries."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, why in entries.items():
        groups.setdefault((name.split('.')[0], why), []).append(name)
    return {
        (names[0] if len(names) == 1 else f'{part}.* ({len(names)} entries)'): why
        for (part, why), names in groups.items()
    }
