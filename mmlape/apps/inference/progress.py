"""Lines of a run of predictions on the screen: one for each image, and for each second of a video."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from .reading import shown

if TYPE_CHECKING:
    from .results import Result
    from .sources import Source

_NAMED = 6  # classes in a line


class Progress:
    """Counts what is predicted, and says how long the rest will take.

    Args:
        sources: All that will be predicted. Videos are opened for their number of frames.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        # Frames before it, its own, and those of a second.
        self._places: dict[Source, tuple[int, int, float]] = {}
        self._total, self._start = 0, time.monotonic()
        for source in sources:
            count, rate = 1, 1.0
            if source.is_video:
                with suppress(ValueError):  # it is named when its turn comes
                    video = source.video()
                    count, rate = video.frame_cnt, video.fps
            self._places[source] = self._total, count, rate
            self._total += count

    def timed(self, results: Iterable[Result], batch: int) -> Iterator[tuple[Result, float]]:
        """Yield results with the seconds that each took: an equal part of its batch's."""
        left = iter(results)
        while True:
            start = time.monotonic()
            some = list(islice(left, batch))
            if not some:
                return
            each = (time.monotonic() - start) / len(some)
            yield from ((result, each) for result in some)

    def line(self, source: Source, frame: int, result: Result, seconds: float) -> str | None:
        """The line of a result; None of most frames of a video."""
        before, count, rate = self._places[source]
        if source.is_video and frame % max(1, round(rate)):
            return None
        done = before + frame + 1  # with those that could not be read
        left = (time.monotonic() - self._start) / done * max(0, self._total - done)
        place = f' at {clock(frame / rate)} of {clock(count / rate)}' if source.is_video else ''
        return (
            f'{done}/{self._total}  {shown(source.path)}{place}: {counted(result)}; {1000 * seconds:.0f} ms, '
            f'about {clock(left)} left'
        )


def counted(result: Result) -> str:
    """Count a result by class, commonest first: ``3 x car, 1 x person``, or ``71 % road, 29 % sky``."""
    if result.label_map is None:
        return named(Counter(result.classes[label] for label in result.labels)) or 'nothing'
    import numpy as np  # programs have imported `clock` before any package

    labels, pixels = np.unique(result.label_map, return_counts=True)
    shares = {k: round(100 * n / pixels.sum()) for k, n in zip(labels, pixels)}
    known = {result.classes[k]: n for k, n in shares.items() if n and k < len(result.classes)}
    return named(Counter(known), ' %') or 'nothing'


def named(counts: Counter[str], unit: str = ' x') -> str:
    """Numbers by name, the largest first; the smallest of many together."""
    common = counts.most_common()
    texts = [f'{number}{unit} {name}' for name, number in common[:_NAMED]]
    rest = sum(number for _, number in common[_NAMED:])
    return ', '.join([*texts, *[f'{rest}{unit} others'] * bool(rest)])


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return (
        f'{minutes // 60}:{minutes % 60:02d}:{rest:02d}'
        if minutes >= 60
        else f'{minutes}:{rest:02d}'
    )
