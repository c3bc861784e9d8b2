"""Images as the backbone of a config gets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import mmcv
import torch
from mmengine.config import Config
from mmengine.model import ImgDataPreprocessor
from torch import Tensor

from mmlape.checks import check_grid, check_positive_int

SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')
# What a config's data preprocessor does to the values of single images.
_VALUE_OPTIONS = ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr')


def find_images(paths: Sequence[str | Path], maximum: int | None = None) -> list[Path]:
    """Image files from a list of files and folders; those of a folder in the order of their names.

    Args:
        paths: Files and folders; folders inside folders are not entered.
        maximum: Keep the first so many. Default None: all.

    Raises:
        FileNotFoundError: If a path does not exist.
        ValueError: If a folder holds no image, or ``maximum`` is less than 1.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise ValueError(
                    f'there is no image ({", ".join(SUFFIXES)}) in the folder {str(path)!r}'
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f'there is no image or folder {str(path)!r}')
    if maximum is not None:
        found = found[: check_positive_int('number of images', maximum)]
    if not found:
        raise ValueError('images must name at least one file or folder')
    return found


def read_images(
    config: Config, paths: Sequence[Path], size: int | tuple[int, int] | None = None
) -> Iterator[Tensor]:
    """Read images one at a time, with the mean, standard deviation and channel order of the config's data preprocessor.

    Args:
        config: Of a detector or a segmentor; without ``model.data_preprocessor`` pixels keep their values (BGR, 0 to
            255).
        paths: Image files.
        size: Height and width in pixels to resize to, one integer or a pair. Default None: as they are. There is no
            padding but what the backbone does itself.

    Yields:
        ``(1, 3, height, width)``, float32.

    Raises:
        ValueError: If a file cannot be decoded, or ``size`` is less than 1.
    """
    size = None if size is None else check_grid('size', size)
    options = config.get('model', {}).get('data_preprocessor') or {}
    given = {name: options[name] for name in _VALUE_OPTIONS if options.get(name) is not None}
    preprocess = ImgDataPreprocessor(**given)
    for path in paths:
        pixels = _decode(path)
        if size is not None:
            pixels = mmcv.imresize(pixels, size[::-1])
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        yield preprocess(dict(inputs=[image]))['inputs']


def _decode(path: Path):
    try:
        pixels = mmcv.imread(str(path), channel_order='bgr')
    except Exception as error:  # each backend has its own
        raise ValueError(f'{str(path)!r} cannot be read as an image: {error}') from error
    if pixels is None:
        raise ValueError(f'{str(path)!r} cannot be read as an image')
    return pixels
