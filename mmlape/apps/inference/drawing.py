"""The pictures of predict, fit, report, app and ``test --show-dir``: masks, boxes, texts and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from .colours import INSTANCES, colours_of, ink_on, is_by_instance, separated
from .fonts import drawable, text_size, write

if TYPE_CHECKING:
    from .results import Result

_BLEND = 0.5  # of a mask's colour
_READABLE = 800  # pixels of a picture's longer side in which text can be read
_LINES = (60, 200)  # usual sides of objects in pixels, from which on lines have 2 and 3 pixels
_TEXT = 12  # pixels of the smallest letters
_HIDDEN, _OWN_HIDDEN = 0.1, 0.25  # shares of other boxes, and of its own, that a text may cover
_CROWDED = 0.1  # share of the picture that all texts would cover
_SMALL = 3  # times the height of a text: usually smaller objects get none on a crowded picture
_BETWEEN = 8  # pixels between truth and prediction
_FRAME_LEGEND = 0.25  # largest share of a video's height


class _Entry(NamedTuple):
    """An entry of a legend; the colour is BGR, None for what is not painted."""

    name: str
    colour: Sequence[int] | None


def draw(result: Result, longest: int | None = None, frame: bool = False) -> np.ndarray:
    """An image with what was found in it and a legend below, uint8, BGR; small ones are enlarged by a whole number.

    Args:
        result: What was found.
        longest: Largest longer side of the image in pixels. Default None: large ones stay as they are.
        frame: It is one of a video: all have one size, and objects the colour of their class.
    """
    drawn = _without_legend(result, longest, by_instance=not frame)
    entries, all_entries = _present(result), _entries(result)
    return _with_legend(drawn, entries, all_entries if frame else None)


def side_by_side(*results: Result, columns: int = 2, longest: int = 30_000) -> np.ndarray:
    """Pictures in rows, such as truth left and prediction right, and one legend; as :func:`draw`, ``longest`` for each.

    By default, two of them fit into a JPEG file.
    """
    pictures = [_without_legend(each, longest) for each in results]
    height, width = (max(each.shape[side] for each in pictures) + _BETWEEN for side in (0, 1))
    rows = -(-len(pictures) // columns)
    together = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for number, each in enumerate(pictures):
        top, left = number // columns * height, number % columns * width
        together[top : top + len(each), left : left + each.shape[1]] = each
    present = [entry for each in results for entry in _present(each)]
    entries = [entry for entry in _entries(results[-1]) if entry in present]
    return _with_legend(together[:-_BETWEEN, :-_BETWEEN], entries)


def _without_legend(
    result: Result, longest: int | None = None, by_instance: bool = True
) -> np.ndarray:
    colours = colours_of(result.classes, result.palette)[:, ::-1]
    of_boxes = colours[result.labels]
    if by_instance and is_by_instance(result.classes, result.palette):
        of_boxes = separated(INSTANCES)[np.arange(len(result)) % INSTANCES, ::-1]
    drawn = _painted(result, colours, of_boxes)
    side = max(drawn.shape)
    most = longest or max(side, _READABLE)
    scale = most / side if side > most else max(1, min(most, _READABLE) // side)
    size = [max(1, round(scale * length)) for length in drawn.shape[1::-1]]
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    drawn = cv2.resize(drawn, size, interpolation=how)
    _draw_boxes(drawn, (scale * result.boxes).round().astype(int), of_boxes, _texts(result))
    return drawn


def _painted(result: Result, colours: np.ndarray, of_boxes: np.ndarray) -> np.ndarray:
    """A copy of the image under its label map or masks."""
    drawn = result.image.copy()
    if result.label_map is not None:
        known = result.label_map < len(colours)
        painted = colours[np.where(known, result.label_map, 0)]
        drawn[known] = cv2.addWeighted(drawn, 1 - _BLEND, painted, _BLEND, 0)[known]
    for number, crop in [*enumerate(result.crops or ())][::-1]:
        part, mask = crop.place(drawn), crop.array()
        part[mask] = part[mask] * (1 - _BLEND) + of_boxes[number] * _BLEND
    return drawn


def _texts(result: Result) -> list[str]:
    """Class, where there are several, and score of each box; truth has no score."""
    names = drawable(tuple(result.classes)) if len(result.classes) > 1 else ('',)
    texts = [names[label] for label in result.labels]
    if len(result.scores):
        texts = [f'{name} {score:.2f}'.strip() for name, score in zip(texts, result.scores)]
    return texts


def _draw_boxes(
    drawn: np.ndarray, boxes: np.ndarray, colours: np.ndarray, texts: Sequence[str]
) -> None:
    """Draw boxes ``(N, 4)`` in their colours, the best last, with a text for each; in sizes that fit the objects."""
    if not len(boxes):
        return
    height, width = drawn.shape[:2]
    side = float(np.median(np.sqrt((boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1))))
    line = 1 + int(np.searchsorted(_LINES, side, side='right'))
    boxes = boxes.clip(0, (width - 1, height - 1) * 2)
    for (left, top, right, bottom), colour in zip(boxes[::-1].tolist(), colours[::-1]):
        part = drawn[top : bottom + 1, left : right + 1]
        part[:line] = part[-line:] = part[:, :line] = part[:, -line:] = colour
    letters = int(np.clip(side / 8, _TEXT, max(_TEXT, max(height, width) // 50)))
    sizes = np.array([text_size(text, letters) for text in texts])
    crowded = sizes.prod(axis=1).sum() > _CROWDED * width * height
    if any(texts) and not (crowded and side < _SMALL * sizes[0, 1]):
        _write_labels(drawn, boxes, texts, sizes, letters, colours, crowded)


def _write_labels(
    drawn: np.ndarray,
    boxes: np.ndarray,
    texts: Sequence[str],
    sizes: np.ndarray,
    letters: int,
    colours: np.ndarray,
    crowded: bool,
) -> None:
    """Write each box's text where it hides least, the best first; on a crowded picture only where it hides nothing."""
    height, width = drawn.shape[:2]
    written = np.zeros((0, 4), int)
    for k, text in enumerate(texts):
        places = _places(boxes[k], sizes[k], width, height)
        hidden = _hidden(places, boxes, k, written)
        best = hidden.argmin()
        if crowded and hidden[best] > 0:
            continue
        left, top, right, bottom = places[best].tolist()
        written = np.concatenate([written, places[best : best + 1]])
        drawn[top:bottom, left:right] = colours[k]
        # On a narrow picture, smaller letters.
        fitting = max(8, min(letters, letters * width // max(1, sizes[k, 0])))
        write(drawn, (left, top), text, fitting, ink_on(colours[k][::-1]))


def _places(box: np.ndarray, size: np.ndarray, width: int, height: int) -> np.ndarray:
    """Where a text of this size can be at a box, ``(N, 4)``, the best first: above, below, beside, inside."""
    (left, top, right, bottom), (across, down) = box, size
    corners = [
        (left, top - down), (right - across, top - down), (left, bottom), (right - across, bottom),
        (right, top), (left - across, top), (right, bottom - down), (left - across, bottom - down),
        (left, top), (right - across, top), (left, bottom - down), (right - across, bottom - down),
    ]  # fmt: skip
    places = np.array(corners).clip(0, (max(0, width - across), max(0, height - down)))
    return np.concatenate([places, np.minimum(places + size, (width, height))], axis=1)


def _hidden(places: np.ndarray, boxes: np.ndarray, own: int, written: np.ndarray) -> np.ndarray:
    """How much each place ``(N, 4)`` hides of boxes, beyond what it may, and of texts."""
    window = (*places[:, :2].min(0), *places[:, 2:].max(0))
    near, texts = _inside(boxes, window), written[_inside(written, window)]
    may = np.where(near == own, _OWN_HIDDEN, _HIDDEN)
    of_boxes = (_covered(boxes[near], places) - may).clip(0).sum(axis=1)
    return of_boxes + 10 * _covered(texts, places).sum(axis=1)


def _inside(boxes: np.ndarray, window: Sequence[int]) -> np.ndarray:
    """Indices of the boxes that reach into a window."""
    (x1, y1, x2, y2), (left, top, right, bottom) = boxes.T, window
    return np.flatnonzero((x1 < right) & (x2 > left) & (y1 < bottom) & (y2 > top))


def _covered(boxes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The share of each box ``(M, 4)`` that each place ``(N, 4)`` covers, ``(N, M)``."""
    low = np.maximum(boxes[None, :, :2], places[:, None, :2])
    high = np.minimum(boxes[None, :, 2:], places[:, None, 2:])
    sides = boxes[:, 2:] - boxes[:, :2]
    return (high - low).clip(0).prod(axis=2) / sides.prod(axis=1).clip(1)


def _entries(result: Result) -> list[_Entry]:
    """All that a legend can have: none for boxes of a single class."""
    if result.label_map is None and len(result.classes) == 1:
        return []
    colours = colours_of(result.classes, result.palette)[:, ::-1].tolist()
    entries = [*map(_Entry, drawable(tuple(result.classes)), colours)]
    return entries if result.label_map is None else [*entries, _Entry('not labelled', None)]


def _present(result: Result) -> list[_Entry]:
    """Entries of the classes in a picture."""
    entries, found = _entries(result), np.zeros(len(result.classes) + 1, bool)
    found[result.labels] = True
    if result.label_map is not None:
        found[np.unique(result.label_map).clip(max=len(result.classes))] = True
    return [entry for entry, there in zip(entries, found) if there]


def _with_legend(
    drawn: np.ndarray, entries: Sequence[_Entry], of_frames: Sequence[_Entry] | None = None
) -> np.ndarray:
    """A picture with a legend below, which may make a narrow one wider.

    Args:
        drawn: The picture.
        entries: What the legend holds.
        of_frames: All that it could hold, for which there is room in every frame of a video; more than a quarter of its
            height is never used. Default None: as much room as the entries need.
    """
    reserved = entries if of_frames is None else of_frames
    if not reserved:
        return drawn
    height, width = drawn.shape[:2]
    letters = int(np.clip(width // 70, _TEXT, 64))
    line = round(1.5 * text_size('x', letters)[1])
    column = 2 * line + max(text_size(entry.name, letters)[0] for entry in reserved)
    width = max(width, column)
    columns = width // column
    rows = -(-len(reserved) // columns)
    if of_frames is not None:
        rows = min(rows, max(1, int(_FRAME_LEGEND * height) // line))
    room = rows * columns
    if len(entries) > room:
        entries = [*entries[: room - 1], _Entry(f'+ {len(entries) - room + 1}', None)]
    # In a video, each has its own place, if there is room for all.
    places = range(room) if len(reserved) > room else map(reserved.index, entries)
    whole = np.full((height + rows * line, width, 3), 255, np.uint8)
    whole[:height, : drawn.shape[1]] = drawn
    for k, entry in zip(places, entries):
        row, left = k // columns, k % columns * column
        _write_entry(whole[height + row * line :][:line, left : left + column], entry, letters)
    return whole


def _write_entry(place: np.ndarray, entry: _Entry, letters: int) -> None:
    """Write an entry into its place ``(line, width, 3)``: a square of its colour, and its name."""
    line = len(place)
    low, high = line // 4, line - line // 4
    if entry.colour is not None:
        place[low:high, low:high] = entry.colour
    cv2.rectangle(place, (low, low), (high, high), (110, 110, 110), 1)
    top = (line - text_size(entry.name, letters)[1]) // 2
    write(place, (line, top), entry.name, letters, (40, 40, 40))
