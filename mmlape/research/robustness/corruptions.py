"""The corruptions of ImageNet-C, by the package ``imagecorruptions``: the same pixels for the same seed, everywhere."""

from __future__ import annotations

import contextlib
import inspect
import io
import zlib
from typing import Any, Literal

import numpy as np
from mmcv.transforms import BaseTransform

from mmlape.checks import check_option, check_positive_int
from mmlape.registry import TRANSFORMS

from . import CORRUPTIONS, EXTRA, SEVERITIES

_LEAST_SIDE = 32  # the package's minimum
# They draw from generators of their own, which NumPy's global seed does not reach.
_OWN_GENERATOR = ('impulse_noise', 'glass_blur')
_INSTALL = 'pip install imagecorruptions-imaug (or mmlape[robustness])'


def corrupt(image: np.ndarray, corruption: str, severity: int, seed: int) -> np.ndarray:
    """Corrupt one image.

    NumPy's global random state, from which the package draws, is what it was before.

    Args:
        image: ``(H, W, 3)``, uint8, RGB; both sides at least 32.
        corruption: One of :data:`CORRUPTIONS` or :data:`EXTRA`.
        severity: 1 to 5.
        seed: 0 to 2**32 - 1; nothing else decides what is drawn.

    Returns:
        An array like ``image``.

    Raises:
        ValueError: Another shape or type, an unknown corruption, a severity that does not exist.
        ModuleNotFoundError: ``imagecorruptions`` is not installed, or not the maintained one.
    """
    check_option('corruption', corruption, CORRUPTIONS + EXTRA)
    check_positive_int('severity', severity, maximum=SEVERITIES[-1])
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f'corruptions are for images (H, W, 3) of uint8, got {image.shape} of {image.dtype}: '
            'CorruptImage comes before normalising and to_float32'
        )
    if min(image.shape[:2]) < _LEAST_SIDE:
        raise ValueError(
            f'corruptions are for images of at least {_LEAST_SIDE} x {_LEAST_SIDE} pixels, '
            f'got {image.shape[0]} x {image.shape[1]}'
        )
    options = dict(seed=seed) if corruption in _OWN_GENERATOR else {}
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        # The package prints where a zoomed image is a pixel short.
        with contextlib.redirect_stdout(io.StringIO()):
            return _package().corrupt(image, severity, corruption, **options)
    finally:
        np.random.set_state(state)


def image_seed(seed: int, corruption: str, severity: int, index: int) -> int:
    """The seed of one image: every image, corruption and severity has its own, in whatever order they are read."""
    entropy = [seed, zlib.crc32(corruption.encode()), severity, index]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


@TRANSFORMS.register_module()
class CorruptImage(BaseTransform):
    """Corrupt ``img`` as ImageNet-C does (Hendrycks & Dietterich, ICLR 2019): a step for pipelines of MMDetection,
    MMSegmentation and MMPretrain. Boxes, masks and label maps stay; so does the size.

    MMDetection's ``Corrupt``, which the maintained stack no longer has, draws anew in every run, and gives frost and
    JPEG images with red and blue exchanged; hence this one.

    Args:
        corruption: One of ImageNet-C's 15 (``'gaussian_noise'``, ...) or of its 4 extra ones.
        severity: 1 to 5.
        seed: With the image's place in the data set (``sample_idx``), decides everything random. Default 0.
        channel_order: Of ``img``: ``'bgr'`` (default), as MMCV reads files, or ``'rgb'``.

    Raises:
        ValueError: See :func:`corrupt`.
        ModuleNotFoundError: ``imagecorruptions-imaug`` is not installed.
    """

    def __init__(
        self,
        corruption: str,
        severity: int,
        seed: int = 0,
        channel_order: Literal['bgr', 'rgb'] = 'bgr',
    ) -> None:
        self.corruption = check_option('corruption', corruption, CORRUPTIONS + EXTRA)
        self.severity = check_positive_int('severity', severity, maximum=SEVERITIES[-1])
        self.seed = check_positive_int('seed', seed, minimum=0)
        self.channel_order = check_option('channel_order', channel_order, ('bgr', 'rgb'))
        _package()  # before a run begins, not in its first batch

    def transform(self, results: dict) -> dict:
        """``results`` with another ``img``."""
        flip = -1 if self.channel_order == 'bgr' else 1
        image = np.ascontiguousarray(results['img'][..., ::flip])
        seed = image_seed(self.seed, self.corruption, self.severity, _index(results))
        corrupted = corrupt(image, self.corruption, self.severity, seed)
        results['img'] = np.ascontiguousarray(corrupted[..., ::flip])
        return results

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.corruption}, severity={self.severity}, seed={self.seed})'
        )


def _index(results: dict) -> int:
    """Return a number that tells this image from the others of its data set, on every machine."""
    if 'sample_idx' in results:
        return int(results['sample_idx'])
    return zlib.crc32(str(results.get('img_path', '')).replace('\\', '/').split('/')[-1].encode())


def _package() -> Any:
    try:
        import imagecorruptions
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'corruptions need {_INSTALL}', name=error.name) from error
    if 'kwargs' not in inspect.signature(imagecorruptions.corrupt).parameters:
        # 1.1.2 needs names that NumPy 2 no longer has, and two of its corruptions cannot be seeded.
        raise ModuleNotFoundError(
            f'the package imagecorruptions that is installed is no longer maintained: {_INSTALL}',
            name='imagecorruptions',
        )
    return imagecorruptions
