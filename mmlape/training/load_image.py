"""Images of any number of channels, of 8 or 16 bits or floats, which MMCV's loader makes 8-bit BGR; images of a
microscope with one kind of background."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform

from mmlape.checks import check_number, check_positive_int, check_type
from mmlape.pixels import read_pixels
from mmlape.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImage(BaseTransform):
    """Loads an image of any number of channels and normalises it: TIFF, NPY, and what OpenCV reads (16-bit PNG).

    It takes ``img_path``, or ``img`` if it is there already, and adds ``img`` ``(H, W, C)`` float32, ``img_shape`` and
    ``ori_shape`` ``(H, W)``. Channels are in the order of the file. It normalises since MMEngine's preprocessor knows
    means of 1 or 3 channels alone; pixels that are not finite become the mean, 0.

    Args:
        channels: Channels ``C``.
        mean, std: Of each channel, in the file's units. Default None: 0 and 1.

    Raises:
        ValueError: If there are not ``channels`` means, or a deviation is not positive; when called, see
            :func:`~mmlape.pixels.read_pixels`, or if the image has another number of channels.
    """

    def __init__(
        self,
        channels: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.channels = check_positive_int('channels', channels)
        check_type('mean', mean, Sequence[float] | None)
        check_type('std', std, Sequence[float] | None)
        values = dict(mean=[0.0] * channels if mean is None else mean)
        values['std'] = [1.0] * channels if std is None else std
        for name, each in values.items():
            if len(each) != channels:
                raise ValueError(f'{name} must have {channels} values, got {each}')
        self.mean, self.std = (np.array(each, np.float32) for each in values.values())
        if not (self.std > 0).all():
            raise ValueError(f'std must be positive, got {std}')

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add the image."""
        pixels = results['img'] if 'img' in results else self.read(results['img_path'])
        image = (pixels.astype(np.float32) - self.mean) / self.std
        results['img'] = np.where(np.isfinite(image), image, np.float32(0))
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results

    def read(self, path: str | Path) -> np.ndarray:
        """The pixels of a file as they are, ``(H, W, C)``."""
        return self.checked(read_pixels(path), path)

    def checked(self, pixels: np.ndarray, name: Any) -> np.ndarray:
        """``pixels``, if they are those of an image of so many channels, else ValueError with its name."""
        if pixels.ndim != 3 or pixels.shape[2] != self.channels or not pixels.size:
            raise ValueError(
                f'{str(name)!r} must be an image (H, W, {self.channels}), got {pixels.shape}'
            )
        return pixels

    def __repr__(self) -> str:
        return f'{type(self).__name__}(channels={self.channels})'


@TRANSFORMS.register_module()
class DarkBackground(BaseTransform):
    """Makes an image grey, and one with a bright background dark: nuclei of fluorescence, bright on black, and of
    stained tissue, dark on white, then look alike.

    A step of training and test pipelines of MMDetection and MMSegmentation, after ``LoadImageFromFile``. ``img``
    ``(H, W, 3)``, uint8, becomes the mean ``g`` of its channels, in three channels; ``255 - g`` if the mean of ``g`` is
    above ``brightest``.

    Args:
        brightest: Brightest mean of an image whose background is dark, 0 to 255. Default 96: training images of
            BBBC038 have 2 to 57 (fluorescence) and 135 to 216 (bright field and histology).

    Raises:
        ValueError: If ``brightest`` is out of range; when called, if the image has another shape or type.
    """

    def __init__(self, brightest: float = 96) -> None:
        self.brightest = check_number('brightest', brightest, minimum=0)
        if self.brightest > 255:
            raise ValueError(f'brightest must be 0 to 255, got {brightest}')

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """``results`` with another ``img``."""
        image = results['img']
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(
                f'DarkBackground takes images (H, W, 3) of uint8, got {image.shape} of {image.dtype}'
            )
        grey = image.mean(axis=2, keepdims=True).round().astype(np.uint8)
        if grey.mean() > self.brightest:
            grey = 255 - grey
        results['img'] = np.repeat(grey, 3, axis=2)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(brightest={self.brightest:g})'
