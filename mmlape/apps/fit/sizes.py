"""Sizes of images in annotations against those of the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmlape.checkpoints.report import listed

Size = tuple[float, float]


def check_sizes(said: Mapping[Path, Size], found: Mapping[Path, Size], where: str) -> list[str]:
    """Compare width and height in annotation files with those of the images.

    Args:
        said: Width and height in the files, by image; images without are left out.
        found: Those of the images, turned as their EXIF data say.
        where: What has them, for messages: ``'<size> in Annotations'``.

    Returns:
        Notes.

    Raises:
        ValueError: If most images with a size have another one, or EXIF data exchange the sides of one: the boxes
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
            f'{len(turned)} images are turned by their EXIF data, and {where} is that before: delete the EXIF '
            f'orientation if the boxes fit the stored pixels, else mend the size: {listed(turned, 5)}'
        )
    if len(other) > len(said) / 2:
        raise ValueError(
            f'{len(other)} of {len(said)} images have another size than {where} says: use the images that '
            f'were labelled, or scale the boxes (or mend the size, if they fit): {listed(texts, 5)}'
        )
    what = f'images have another size than {where} says'
    return [f'{len(other)} {what}: {listed(texts, 5)}'] if other else []
