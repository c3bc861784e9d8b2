"""Predictions as files: pictures, label maps, a COCO file, a table."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import cv2

from mmlape.atomic import atomic_write

from .drawing import draw
from .names import WRITTEN
from .progress import named
from .results import Result
from .sources import Source


class PredictionWriter:
    """Writes results into a folder.

    Pictures are ``pictures/NAME.jpg`` (a video ``pictures/NAME.mp4``), label maps ``label_maps/NAME.png``; at the end
    come ``predictions.json`` in COCO's format, with RLE masks, and ``predictions.csv``, a line for each box.

    Args:
        folder: The folder; it is made.
        classes: Names of the labels.
        pictures: Whether to draw.
        as_json, as_csv: Whether to write these files.

    Raises:
        ValueError: If the folder cannot be written.
    """

    def __init__(
        self, folder: Path, classes: tuple[str, ...], pictures: bool, as_json: bool, as_csv: bool
    ) -> None:
        self.folder, self.pictures = folder, pictures
        self.as_json, self.as_csv = as_json, as_csv
        self.coco: dict[str, list[dict[str, Any]]] = dict(images=[], annotations=[])
        self.coco['categories'] = [dict(id=i, name=name) for i, name in enumerate(classes, 1)]
        self._video: tuple[Path, cv2.VideoWriter] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(folder / 'classes.txt', ('\n'.join(classes) + '\n').encode())
        except OSError as error:
            raise ValueError(f'--out: {folder} cannot be written: {error}') from None

    def add(self, source: Source, frame: int, result: Result) -> None:
        """Write what was found in an image, or in the ``frame`` of a video, which come in order."""
        name = (
            source.name.with_name(f'{source.name.name}_{frame:06d}')
            if source.is_video
            else source.name
        )
        if self.pictures and source.is_video:
            self._frame(source, result)
        elif self.pictures:
            small = max(result.image.shape[:2]) <= 60000  # with a legend, what a JPEG file can hold
            result.save(_beside(self.folder / 'pictures' / name, '.jpg' if small else '.png'))
        if result.label_map is not None:
            result.save_label_map(_beside(self.folder / 'label_maps' / name, '.png'))
        height, width = result.image.shape[:2]
        number = len(self.coco['images']) + 1
        entry = dict(id=number, file_name=str(source.path), height=height, width=width)
        self.coco['images'].append({**entry, 'frame': frame} if source.is_video else entry)
        for found in result.annotations():
            identity = dict(id=len(self.coco['annotations']) + 1, image_id=number)
            self.coco['annotations'].append({**identity, **found})

    def close(self) -> None:
        """Write the files of all images."""
        if self._video is not None:
            self._video[1].release()
        if self.as_json:
            atomic_write(self.folder / 'predictions.json', json.dumps(self.coco).encode())
        if self.as_csv:
            # Names of files that are not UTF-8 are written as they are.
            table = self._table().encode(errors='surrogateescape')
            atomic_write(self.folder / 'predictions.csv', table)

    def summary(self) -> str:
        """Say what was found, where it is, and what could be done next."""
        images, boxes = self.coco['images'], self.coco['annotations']
        names = [entry['name'] for entry in self.coco['categories']]
        counts = Counter(names[box['category_id'] - 1] for box in boxes)
        found = f', {len(boxes)} box{"es" * (len(boxes) > 1)} ({named(counts)})' if boxes else ''
        written = any((self.folder / name).exists() for name in WRITTEN if name != 'classes.txt')
        see = f': see {self.folder}' * written
        lines = [f'{len(images)} image{"s" * (len(images) != 1)}{found}{see}']
        if boxes and not (self.as_json or self.as_csv):
            lines.append(
                'next: --json (COCO) or --csv write the boxes; --score S draws fewer or more'
            )
        return '\n'.join(lines)

    def _frame(self, source: Source, result: Result) -> None:
        """Add a frame to the video; the one before is finished."""
        path, picture = (
            _beside(self.folder / 'pictures' / source.name, '.mp4'),
            draw(result, frame=True),
        )
        if self._video is None or self._video[0] != path:
            if self._video is not None:
                self._video[1].release()
            path.parent.mkdir(parents=True, exist_ok=True)
            codec, rate = cv2.VideoWriter.fourcc(*'mp4v'), source.video().fps
            video = cv2.VideoWriter(str(path), codec, rate, picture.shape[1::-1])
            self._video = path, video
        self._video[1].write(picture)

    def _table(self) -> str:
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(['file', 'frame', 'class', 'score', 'x1', 'y1', 'x2', 'y2'])
        for found in self.coco['annotations']:
            image = self.coco['images'][found['image_id'] - 1]
            x, y, width, height = found['bbox']
            name = self.coco['categories'][found['category_id'] - 1]['name']
            box = (f'{side:.2f}' for side in (x, y, x + width, y + height))
            row = [image['file_name'], image.get('frame', ''), name, f'{found["score"]:.4f}', *box]
            table.writerow(row)
        return text.getvalue()


def _beside(path: Path, suffix: str) -> Path:
    """The path with a further suffix; names may have dots."""
    return path.with_name(path.name + suffix)
