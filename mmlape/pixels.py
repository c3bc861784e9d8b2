"""Pixels of image files as they are: any number of channels, of 8 or 16 bits or floats."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageOps

ARRAYS, TIFFS = ('.npy',), ('.tif', '.tiff')
MOST_PIXELS = 1e9  # of a coordinate, far above real data


def read_pixels(path: str | Path) -> np.ndarray:
    """The pixels of an image file as they are, ``(H, W, C)``: integers, floats or bool, channels in the file's order.

    ``.npy`` holds ``(H, W)`` or ``(H, W, C)``. TIFFs may have their channels first, or on pages; they need the package
    ``tifffile``, but for those of 1, 3 or 4 channels. Of other files, OpenCV reads all bits.

    Raises:
        ValueError: If it is missing, cannot be decoded, or holds something else than one image.
    """
    name, suffix = str(path), Path(path).suffix.lower()
    if not os.path.isfile(name):
        raise ValueError(f'there is no image {name!r}')
    try:
        if suffix in ARRAYS:
            pixels = np.load(name, allow_pickle=False)
        elif suffix in TIFFS and (found := _of_tiff(name)) is not None:
            pixels = found
        else:
            pixels = _of_opencv(name)
    except (OSError, ValueError, EOFError, MemoryError, cv2.error) as error:
        raise ValueError(f'{name!r} cannot be read as an image: {error}') from None
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.dtype.kind not in 'uifb' or not pixels.size:
        raise ValueError(f'{name!r} is no image (H, W, C): {pixels.dtype} {pixels.shape}')
    return pixels


def _of_opencv(name: str) -> np.ndarray:
    pixels = cv2.imread(name, cv2.IMREAD_UNCHANGED)
    tiff = name.lower().endswith(TIFFS)
    if pixels is None:
        more = ', or a TIFF for the package tifffile' * tiff
        raise ValueError(f'OpenCV cannot decode it: it is damaged, or of another kind{more}')
    if tiff and cv2.imcount(name) > 1:  # OpenCV reads the first page alone
        raise ValueError('a TIFF of several pages needs the package tifffile')
    if pixels.ndim == 3:  # BGR and BGRA
        pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]
    return pixels


def _of_tiff(name: str) -> np.ndarray | None:
    """The pixels by tifffile, channels last; None without that package."""
    try:
        import tifffile
    except ImportError:
        return None
    with tifffile.TiffFile(name) as file:
        pages = [series.asarray() for series in file.series]
        pixels, axes = pages[0], file.series[0].axes
    if len(pages) > 1 and axes == 'YX' and len({page.shape for page in pages}) == 1:
        return np.stack(pages, axis=-1)
    sizes = zip(axes, pixels.shape, strict=True)
    others = [number for number, (axis, size) in enumerate(sizes) if axis not in 'YX' and size > 1]
    if not {'Y', 'X'} <= {*axes} or len(others) > 1:
        raise ValueError(
            f'it has the axes {axes} {pixels.shape}, and must have height, width and channels'
        )
    order = [axes.index('Y'), axes.index('X'), *others]
    rest = [number for number in range(pixels.ndim) if number not in order]
    return pixels.transpose(*order, *rest).reshape([pixels.shape[number] for number in order])


def pixels_of(image: Image.Image, plain: bool = True) -> np.ndarray:
    """Pixels of a PIL image, turned as its EXIF data say: BGR ``(H, W, 3)`` uint8, or as they are, ``(H, W, C)``.

    Raises:
        TypeError: If a ``plain`` image has more than 8 bits, which PIL would cut off.
    """
    image = ImageOps.exif_transpose(image)
    if plain or image.mode == 'P':
        if image.mode[0] in 'IF':
            raise TypeError(f'an image must have 8 bits, got a PIL image of mode {image.mode!r}')
        image = image.convert('RGB')
    pixels = np.array(image)
    if plain:
        return np.ascontiguousarray(pixels[..., ::-1])
    return pixels if pixels.ndim == 3 else pixels[..., None]


def is_plain(pixels: np.ndarray) -> bool:
    """Whether MMCV's own loader keeps an image: 8 bits, and one, three or (transparent) four channels."""
    return pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3, 4)


def statistics_of(paths: Iterable[str | Path]) -> tuple[int, list[float], list[float]]:
    """Number of channels, and mean and standard deviation of each over the finite pixels of images.

    Raises:
        ValueError: If an image cannot be read, has another number of channels than the first, or a channel has one
            value everywhere.
    """
    count: Any = 0
    total: Any = 0
    squares: Any = 0
    channels = 0
    for path in paths:
        pixels = read_pixels(path)
        channels = channels or pixels.shape[2]
        if pixels.shape[2] != channels:
            raise ValueError(
                f'{str(path)!r} has {pixels.shape[2]} channels, others have {channels}'
            )
        values = pixels.reshape(-1, channels).astype(np.float64)
        finite = np.isfinite(values)
        values[~finite] = 0
        count, total = count + finite.sum(0), total + values.sum(0)
        squares = squares + np.square(values).sum(0)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(squares / np.maximum(count, 1) - np.square(mean), 0))
    if flat := [number for number, each in enumerate(std) if not each > 1e-9 * abs(mean[number])]:
        raise ValueError(f'channels {flat} have one value in all images that were looked at')
    return channels, [float(f'{each:.6g}') for each in mean], [float(f'{each:.6g}') for each in std]


def picture_of(pixels: np.ndarray) -> np.ndarray:
    """An image of any kind to look at, ``(H, W, 3)`` uint8, BGR: its first three channels, or the first one, stretched
    from their 1st to their 99th percentile."""
    shown = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., [0, 0, 0]]
    shown = np.where(np.isfinite(shown), shown, 0).astype(np.float32)
    low, high = np.percentile(shown, (1, 99), axis=(0, 1))
    scaled = (shown - low) / np.maximum(high - low, 1e-12)
    return np.ascontiguousarray((255 * scaled.clip(0, 1)).round().astype(np.uint8)[..., ::-1])
