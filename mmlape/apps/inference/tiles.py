"""Large images in tiles: where they lie, and one result of those of all tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mmlape.checks import check_positive_int, check_rate

from .results import MaskCrop, Result

_LEAST = 32  # side of a tile
_SAME = 0.5  # overlap from which two boxes are one object
_AT_BORDER = 2.0  # pixels within which a box is cut


class Tile(NamedTuple):
    """A part of an image, in pixels; ``right`` and ``bottom`` are the first ones outside."""

    left: int
    top: int
    right: int
    bottom: int

    def cut(self, image: np.ndarray) -> np.ndarray:
        """The part of an image ``(H, W, ...)``, a view."""
        return image[self.top : self.bottom, self.left : self.right]


def input_side(cfg: Mapping[str, Any]) -> int:
    """The side of tiles that a model's test pipeline leaves as large as they are: its scale, or the size of crops; 1024
    where it has neither."""
    steps = cfg['test_dataloader']['dataset']['pipeline']
    model = cfg['model']
    sizes = [
        *(step.get('scale') for step in steps if 'Resize' in str(step['type'])),
        *((model.get(part) or {}).get('crop_size') for part in ('test_cfg', 'train_cfg')),
        (model.get('data_preprocessor') or {}).get('size'),
    ]
    for size in filter(None, sizes):
        if sides := [int(side) for side in np.ravel(size) if _LEAST <= side < np.inf]:
            return min(sides)
    return 1024


def tiles_of(height: int, width: int, side: int, overlap: float = 0.2) -> list[Tile]:
    """Tiles that cover an image, row by row.

    Args:
        height, width: Of the image in pixels.
        side: Of a tile; an axis that is shorter has one tile of its length.
        overlap: Least share of the side by which neighbours overlap, 0 to less than 1. Default 0.2. The last tile of an
            axis ends where the image ends, and overlaps more.

    Raises:
        TypeError, ValueError: If ``side`` is not a positive integer, or ``overlap`` is out of range.
    """
    check_positive_int('tile', side, minimum=_LEAST)
    step = max(1, round(side * (1 - check_rate('overlap', overlap))))

    def spans(length: int) -> list[tuple[int, int]]:
        last = max(length - side, 0)
        return [(start, min(start + side, length)) for start in [*range(0, last, step), last]]

    return [Tile(x, y, right, bottom) for y, bottom in spans(height) for x, right in spans(width)]


def merge_boxes(whole: Result, tiles: Sequence[Tile], parts: Sequence[Result]) -> Result:
    """Boxes and masks of an image from those of its tiles.

    Two boxes of one class from different tiles are one object where their intersection is at least half of their
    union; where one of them is cut by a border inside of the image, where it is at least half of that one, which
    yields. Otherwise the better score stays.

    Args:
        whole: Of the image, without boxes, or with those of the shrunken image, which count as a tile without a
            border.
        tiles: The tiles.
        parts: A result of each, in its own pixels.
    """
    height, width = whole.image.shape[:2]
    everything = [(whole, Tile(0, 0, width, height)), *zip(parts, tiles, strict=True)]
    boxes = np.concatenate([part.boxes + np.array(tile[:2] * 2) for part, tile in everything])
    scores = np.concatenate([part.scores for part, _ in everything])
    labels = np.concatenate([part.labels for part, _ in everything])
    source = np.repeat(range(len(everything)), [len(part) for part, _ in everything])
    inner = np.array([_inner_borders(tile, height, width) for _, tile in everything])[source]
    inward = np.array([1, 1, -1, -1])
    is_cut = ((boxes - inner) * inward <= _AT_BORDER).any(1)
    kept = _without_repeated(boxes, scores, labels, source, is_cut)
    crops = None
    if any(part.crops is not None for part, _ in everything):
        moved = [
            MaskCrop(crop.left + tile.left, crop.top + tile.top, crop.rle)
            for part, tile in everything
            for crop in part.crops or ()
        ]
        crops = [moved[number] for number in kept]
    found = Result(whole.image, whole.name, whole.classes, palette=whole.palette, crops=crops)
    found.boxes = boxes[kept].astype(np.float32)
    found.scores, found.labels = scores[kept], labels[kept]
    return found


def _inner_borders(tile: Tile, height: int, width: int) -> tuple[float, ...]:
    """Left, top, right and bottom where they are inside of the image, else infinitely far outside."""
    far = np.inf
    return (
        tile.left if tile.left > 0 else -far,
        tile.top if tile.top > 0 else -far,
        tile.right if tile.right < width else far,
        tile.bottom if tile.bottom < height else far,
    )


def _without_repeated(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    source: np.ndarray,
    is_cut: np.ndarray,
) -> np.ndarray:
    """Indices of boxes that stay, best first."""
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1).clip(min=1e-6)
    left = np.lexsort((-scores, is_cut))  # whole ones first, then by score
    stay = []
    while len(left):
        best, left = left[0], left[1:]
        stay.append(best)
        corners = (
            np.maximum(boxes[best, :2], boxes[left, :2]),
            np.minimum(boxes[best, 2:], boxes[left, 2:]),
        )
        inside = np.prod((corners[1] - corners[0]).clip(min=0), axis=1)
        reference = np.where(is_cut[left], areas[left], areas[best] + areas[left] - inside)
        same = (labels[left] == labels[best]) & (source[left] != source[best])
        left = left[~(same & (inside >= _SAME * reference))]
    order = np.array(stay, int)
    return order[np.argsort(-scores[order], kind='stable')]


class LogitMean:
    """Mean logits of overlapping tiles, as MMSegmentation's ``slide_inference`` computes them.

    The edges of all tiles cut the image into rectangles, each covered by the same tiles everywhere. Logits of a
    rectangle are summed up to its last tile, then averaged and handed over. With tiles row by row, fewer logits are
    held than a row of tiles has: 150 classes of 6000 x 4000 pixels would take 14.4 GB.

    Args:
        tiles: All tiles of the image, in the order in which they will be added.
        finish: Called once for each rectangle with its place and its mean logits ``(C, h, w)``.

    Attributes:
        pending: Sums of logits ``(C, h, w)`` of the rectangles that later tiles cover.
    """

    def __init__(self, tiles: Sequence[Tile], finish: Callable[[Tile, Tensor], None]) -> None:
        self._rows = sorted({edge for tile in tiles for edge in (tile.top, tile.bottom)})
        self._columns = sorted({edge for tile in tiles for edge in (tile.left, tile.right)})
        self._counts = Counter(part for tile in tiles for part in self._parts(tile))
        self._missing = self._counts.copy()
        self._finish = finish
        self.pending: dict[Tile, Tensor] = {}

    def add(self, tiles: Sequence[Tile], logits: Iterable[Tensor]) -> None:
        """Add the next tiles with the logits ``(C, h, w)`` of each, which may be changed."""
        for tile, of_tile in zip(tiles, logits, strict=True):
            for part in self._parts(tile):
                rows = slice(part.top - tile.top, part.bottom - tile.top)
                columns = slice(part.left - tile.left, part.right - tile.left)
                piece = of_tile[:, rows, columns]
                if part in self.pending:
                    self.pending[part] += piece
                elif self._counts[part] > 1:
                    # A copy: a view would keep the logits of the whole tile in memory.
                    self.pending[part] = piece.clone()
                self._missing[part] -= 1
                if not self._missing[part]:
                    total = self.pending.pop(part, piece)
                    self._finish(part, total.div_(self._counts[part]))

    def _parts(self, tile: Tile) -> Iterator[Tile]:
        """The rectangles of a tile."""
        rows = [edge for edge in self._rows if tile.top <= edge <= tile.bottom]
        columns = [edge for edge in self._columns if tile.left <= edge <= tile.right]
        for top, bottom in pairwise(rows):
            for left, right in pairwise(columns):
                yield Tile(left, top, right, bottom)
