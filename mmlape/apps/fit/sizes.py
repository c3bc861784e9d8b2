"""Sizes of images in annotations against those of the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmlape.checkpoints.report import listed

Size = tuple[float, float]


def check_voc_sizes(said: Mapping[Path, Size], found: Mapping[Path, Size]) -> list[str]:
    """Compare width and height in the ``<size>`` of Pascal VOC's files with those of the images.

    Args:
        said: Width and height in the files, by image; images without are left out, as are sizes of 0.
        found: Those of the images, turned as their EXIF data say.

    Returns:
        Notes.

    Raises:
        ValueError: If most images with a ``<size>`` have another one, or EXIF data exchange the sides of one: the boxes
            are not in pixels of the images then.
    """
    from mmlape.training.data_sizes import is_turned  # with torch, which `--help` does without

    other = {path: size for path, size in said.items() if size != found[path]}
    texts = [f'{path.name} ({found[path][0]} x {found[path][1]})' for path in other]
    turned = [
        path.name
        for path, size in other.items()
        if size == found[path][::-1] and is_turned(str(path))
    ]
    if turned:
        raise ValueError(
            f'{len(turned)} images are turned by their EXIF data, and <size> in Annotations is that before: delete the '
            f'EXIF orientation if the boxes fit the stored pixels, else mend <size>: {listed(turned, 5)}'
        )
    if len(other) > len(said) / 2:
        raise ValueError(
            f'{len(other)} of {len(said)} images have another size than <size> in Annotations says: use the images '
            f'that were labelled, or scale the boxes (or mend <size>, if they fit): {listed(texts, 5)}'
        )
    what = 'images have another size than <size> in Annotations says'
    return [f'{len(other)} {what}: {listed(texts, 5)}'] if other else []
