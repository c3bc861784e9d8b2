"""Results of a model for an image: boxes, masks or a label map, and how they are drawn and written."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import mmcv
import numpy as np
from mmengine.logging import print_log
from PIL import Image
from pycocotools import mask as coco_mask

from mmlape.atomic import atomic_write
from mmlape.pixels import ARRAYS, is_plain, picture_of, read_pixels

from .colours import colours_of
from .drawing import draw
from .reading import check_fits_memory, shown

_NOTEBOOK = 1600  # pixels of a picture's longer side in a notebook


class MaskCrop(NamedTuple):
    """A mask as run lengths of the smallest rectangle around it: large images never have masks of their own size.

    Attributes:
        left, top: Column and row of the rectangle's first pixel in the image.
        rle: COCO's compressed run lengths of the rectangle, ``{'size': [height, width], 'counts': bytes}``.
    """

    left: int
    top: int
    rle: dict[str, Any]

    @classmethod
    def of(cls, mask: np.ndarray, left: int = 0, top: int = 0) -> MaskCrop:
        """Crop a boolean mask ``(H, W)``, whose first pixel is at column ``left`` and row ``top`` of the image."""
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if not len(rows):
            return cls(left, top, coco_mask.encode(np.zeros((1, 1), np.uint8, order='F')))
        box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        rle = coco_mask.encode(np.asfortranarray(box, dtype=np.uint8))
        return cls(left + int(columns[0]), top + int(rows[0]), rle)

    def array(self) -> np.ndarray:
        """The rectangle, boolean ``(height, width)``."""
        return coco_mask.decode(self.rle).astype(bool)

    def place(self, image: np.ndarray) -> np.ndarray:
        """The rectangle in an image ``(H, W, ...)``, a view."""
        left, top, right, bottom = self.box
        return image[top:bottom, left:right]

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The rectangle's corners, x1, y1, x2, y2."""
        height, width = self.rle['size']
        return self.left, self.top, self.left + width, self.top + height

    def in_image(self, height: int, width: int) -> dict[str, Any]:
        """COCO's compressed run lengths of an image of this size; ``counts`` is text, as in JSON files."""
        columns, rows = np.nonzero(self.array().T)
        index = (columns + self.left) * height + rows + self.top  # column by column, as COCO counts
        breaks = np.flatnonzero(np.diff(index) != 1)
        starts, ends = (
            np.insert(index[breaks + 1], 0, index[:1]),
            np.append(index[breaks], index[-1:]),
        )
        bounds = np.stack([starts, ends + 1], axis=1).ravel()
        counts = np.diff(bounds, prepend=0, append=height * width)
        counts = counts[:-1] if not counts[-1] else counts  # none ends with zero pixels
        rle = dict(size=[height, width], counts=counts.tolist())
        found = coco_mask.frPyObjects(rle, height, width)
        return dict(found, counts=found['counts'].decode())


@dataclass(repr=False)
class Result:
    """Result of a model for one image.

    Attributes:
        image: The image, ``(H, W, 3)`` uint8, BGR.
        name: Its file's name, or its number among the images given.
        classes: Names of the labels.
        boxes: ``(N, 4)`` float32, x1, y1, x2, y2 in pixels, best first; empty for a segmentor.
        scores: ``(N,)`` float32, 0 to 1; empty of ground truth.
        labels: ``(N,)`` int64, indices of ``classes``.
        crops: Masks of the boxes as crops, or None where the model makes none.
        label_map: ``(H, W)``, indices of ``classes``, of a semantic segmentor; else None.
        palette: A colour (RGB) for each class; others than one for each are replaced by ours.
        pixels: ``(H, W, C)``, what the model saw, of which ``image`` is a picture; None if that is ``image`` itself.
    """

    image: np.ndarray
    name: str
    classes: Sequence[str]
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    crops: list[MaskCrop] | None = None
    label_map: np.ndarray | None = None
    palette: Sequence[Sequence[int]] | None = None
    pixels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def __repr__(self) -> str:
        height, width = self.image.shape[:2]
        found = np.bincount(self.labels, minlength=1)
        what = [f'{found[k]} {self.classes[k]}' for k in np.flatnonzero(found).tolist()]
        if self.label_map is not None:
            known = self.label_map[self.label_map < len(self.classes)]
            shares = np.bincount(known.ravel(), minlength=1) / max(1, self.label_map.size)
            what += [f'{shares[k]:.0%} {self.classes[k]}' for k in np.flatnonzero(shares).tolist()]
        return f'Result({self.name!r}, {width} x {height}: {", ".join(what) or "nothing"})'

    def _repr_png_(self) -> bytes:
        """For notebooks."""
        return cv2.imencode('.png', draw(self, longest=_NOTEBOOK))[1].tobytes()

    @property
    def masks(self) -> np.ndarray | None:
        """``(N, H, W)``, boolean, made anew on each access; None where the model makes none. For large images read
        ``crops``."""
        if self.crops is None:
            return None
        masks = np.zeros((len(self.crops), *self.image.shape[:2]), bool)
        for mask, crop in zip(masks, self.crops):
            crop.place(mask)[:] = crop.array()
        return masks

    def picture(self) -> np.ndarray:
        """The image with what was found drawn into it, uint8, BGR; below, a legend, where there are several classes.

        Small images are enlarged by a whole number. A label that finds no room is moved, on a crowded picture left out.
        """
        return draw(self)

    def save(self, path: str | Path) -> None:
        """Write :meth:`picture` to an image file, atomically; its suffix says the format.

        Raises:
            ValueError: If no image of this size can be written with this suffix.
        """
        write_picture(self.picture(), path)

    def save_label_map(self, path: str | Path) -> None:
        """Write the label map as a PNG of one channel with its palette, as MMSegmentation reads it; of 16 bits and
        without palette for more than 256 classes."""
        if self.label_map is None:
            raise ValueError(f'{self.name} has no label map: its model finds boxes')
        if len(self.classes) > 256:
            picture = Image.fromarray(self.label_map.astype(np.uint16))
        else:
            picture = Image.fromarray(self.label_map.astype(np.uint8))
            # All colours: with fewer, Pillow would cut the labels off too.
            colours = np.zeros((256, 3), np.uint8)
            colours[: len(self.classes)] = colours_of(self.classes, self.palette)
            picture.putpalette(colours.tobytes())
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)

    def to_supervision(self) -> Any:
        """Boxes, masks and names as ``supervision.Detections``; of a label map, a mask of each class.

        Raises:
            ImportError: Without the package supervision.
        """
        try:
            import supervision
        except ImportError as error:
            raise ImportError(f'to_supervision() needs pip install supervision: {error}') from None
        boxes, labels, masks = self.boxes, self.labels, self.masks
        if self.label_map is not None:
            present = np.unique(self.label_map)
            labels = present[present < len(self.classes)].astype(np.int64)
            masks = self.label_map == labels[:, None, None]
            boxes = np.array([MaskCrop.of(mask).box for mask in masks], np.float32).reshape(-1, 4)
        names = np.array(self.classes)[labels]
        scores = self.scores if len(self.scores) == len(labels) else None
        return supervision.Detections(boxes, masks, scores, labels, data=dict(class_name=names))

    def annotations(self) -> Iterator[dict[str, Any]]:
        """Entries of a COCO file, without ``id`` and ``image_id``: ``category_id`` is the label + 1."""
        height, width = self.image.shape[:2]
        for number in range(len(self)):
            x1, y1, x2, y2 = map(float, self.boxes[number])
            entry = dict(
                category_id=int(self.labels[number]) + 1,
                bbox=[x1, y1, x2 - x1, y2 - y1],
                area=(x2 - x1) * (y2 - y1),
                iscrowd=0,
            )
            if len(self.scores):
                entry['score'] = float(self.scores[number])
            if self.crops is not None:
                entry.update(
                    area=int(coco_mask.area(self.crops[number].rle)),
                    segmentation=self.crops[number].in_image(height, width),
                )
            yield entry


def write_picture(picture: np.ndarray, path: str | Path) -> None:
    """Write a picture, BGR, to an image file, atomically; ValueError if its suffix is of no format for this size."""
    try:
        done, encoded = cv2.imencode(Path(path).suffix, picture)
    except cv2.error:
        done = False
    if not done:
        sides = '{1} x {0}'.format(*picture.shape)
        raise ValueError(
            f'no picture can be written to {str(path)!r}, {sides} pixels: use .png, or .jpg up to 65500 x 65500'
        )
    atomic_write(Path(path), encoded.tobytes())


def read_image(path: str | Path) -> np.ndarray:
    """An image file as MMCV's pipelines read it, ``(H, W, 3)`` uint8, BGR.

    Raises:
        ValueError: If it is missing or cannot be decoded: not a regular file, larger than memory, or of more pixels
            than OpenCV decodes.
    """
    name = shown(path)
    if Path(path).suffix.lower() in ARRAYS:
        raise ValueError(f'{name}: arrays are for models of other images than 8-bit RGB')
    if '://' not in str(path):  # else an address, which MMEngine reads
        check_fits_memory(path)
    try:
        image = mmcv.imread(str(path))
        is_dark = image is not None and image.max(initial=0) < 64
        whole = mmcv.imread(str(path), flag='unchanged') if is_dark else image
    except (OSError, MemoryError, cv2.error) as error:
        raise ValueError(f'{name} cannot be read: {_reason(error)}') from None
    if image is None or not image.size:
        raise ValueError(f'{name} cannot be decoded as an image')
    if whole is not None and whole.dtype != np.uint8:
        print_log(
            f'{name} has 16 bits, of which MMCV keeps the upper 8: it is nearly black; scale it to 8 bits',
            logger='current',
            level=logging.WARNING,
        )
    return image


def read_picture(path: str | Path) -> np.ndarray:
    """An image file to look at, ``(H, W, 3)`` uint8, BGR: as :func:`read_image`; of more channels, bits or floats, as
    :func:`~mmlape.pixels.picture_of` shows it."""
    if Path(path).suffix.lower() in ('.npy', '.tif', '.tiff', '.png'):
        pixels = read_pixels(path)
        if not is_plain(pixels):
            return picture_of(pixels)
    return read_image(path)


def _reason(error: Exception) -> str:
    """Return what is wrong with an image, in a line: OpenCV says which of its conditions does not hold."""
    said = str(getattr(error, 'err', None) or error)
    if 'buf.empty' in said:
        return 'it is empty'
    if 'CV_IO_MAX_IMAGE' in said:
        return (
            'it has more pixels than OpenCV decodes (OPENCV_IO_MAX_IMAGE_PIXELS, by default 2^30)'
        )
    return shown(' '.join(said.split())) or 'it does not fit into memory'
