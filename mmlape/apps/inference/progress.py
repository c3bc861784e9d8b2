"""Lines of a run of predictions on the screen: one for each image, and for each second of a video."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np

from .reading import shown
from .results import Result
from .sources import Source

_NAMED = 6  # classes in a line


class Progress:
    """Counts what is predicted, and says how long the rest will take.

    Args:
        sources: All that will be predicted. Videos are opened for their number of frames.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._frames: dict[Source, tuple[int, float]] = {}  # number, and frames per second
        for source in sources:
            self._frames[source] = 1, 1.0
            if source.is_video:
                with suppress(ValueError):  # it is named when its turn comes
                    video = source.video()
                    self._frames[source] = video.frame_cnt, video.fps
        self._start, self._done = time.monotonic(), 0

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
        self._done += 1
        count, rate = self._frames[source]
        if source.is_video and frame % max(1, round(rate)):
            return None
        total = max(self._done, sum(number for number, _ in self._frames.values()))
        left = (time.monotonic() - self._start) / self._done * (total - self._done)
        place = f' at {clock(frame / rate)} of {clock(count / rate)}' if source.is_video else ''
        return (
            f'{self._done}/{total}  {shown(source.path)}{place}: {counted(result)}; {1000 * seconds:.0f} ms, '
            f'about {clock(left)} left'
        )


def counted(result: Result) -> str:
    """Count a result by class, commonest first: ``3 x car, 1 x person``, or ``71 % road, 29 % sky``."""
    if result.label_map is None:
        return named(Counter(result.classes[label] for label in result.labels)) or 'nothing'
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
