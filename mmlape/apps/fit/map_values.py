"""Values of label maps: indices of classes, or colours."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmlape.apps.inference.reading import check_regular

from .legends import IGNORED, Legend, colour_code

_LOSSY = ('JPEG', 'MPO', 'JPEG2000', 'WEBP', 'AVIF')  # Pillow's names of formats


class Values(NamedTuple):
    """Values of a label map.

    Attributes:
        array: (H, W): indices, or codes of colours (:func:`~mmlape.apps.fit.legends.colour_code`).
        channels: How many the file has.
    """

    array: Any
    channels: int


@dataclass(frozen=True)
class Recoded:
    """A label map as PNG, with other labels for its values; values without one are ignored."""

    path: Path
    labels: Mapping[int, int]
    legend: Legend | None = None

    def __call__(self) -> bytes:
        """The bytes of the file."""
        import numpy as np
        from PIL import Image

        values = values_of(self.path, self.legend).array
        table = np.full(max(*self.labels, int(values.max(initial=0))) + 1, IGNORED, np.uint8)
        table[list(self.labels)] = list(self.labels.values())
        file = io.BytesIO()
        Image.fromarray(table[values]).save(file, 'PNG')
        return file.getvalue()


def values_of(path: Path, legend: Legend | None = None) -> Values:
    """The values of a label map.

    Without a legend of colours, three equal channels are read as one. With it, a palette is one of colours if all those
    in use are in the legend; its indices need not be in the order of the legend then.

    Raises:
        ValueError: If it cannot be read, its format is lossy, or it has other channels or values.
    """
    import numpy as np
    from PIL import Image

    check_regular(path)
    try:
        with Image.open(path) as image:
            form, values = image.format, np.array(image)
            palette = image.getpalette() if image.mode == 'P' else None
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise ValueError(f'{path} cannot be read: {error}') from None
    if form in _LOSSY:
        raise ValueError(
            f'{path} is {form}, which changes values of pixels: label maps must be saved as PNG, by the tool that '
            'made them'
        )
    if values.dtype.kind not in 'bui' or values.min(initial=0) < 0:
        raise ValueError(f'{path} holds values that are not an index of a class')
    colours = legend if legend and legend.has_colours else None
    if values.ndim != 2:
        return _values_of_channels(path, values, colours)
    if values.max(initial=0) > 255:
        raise ValueError(f'{path} holds values above 255, of which upstream reads 8 bits')
    if colours and palette:
        codes = np.full(256, IGNORED)
        codes[: len(palette) // 3] = colour_code(*np.array(palette).reshape(-1, 3).T)
        codes[IGNORED] = IGNORED  # the borders of Pascal VOC
        if all(int(code) in colours.labels for code in codes[np.unique(values)] if code != IGNORED):
            return Values(codes[values], 1)
    return Values(values.astype(np.uint8), 1)


def _values_of_channels(path: Path, values: Any, colours: Legend | None) -> Values:
    channels = values.shape[-1]
    if channels not in (3, 4):
        raise ValueError(
            f'{path} has {channels} channels; a label map has one, the class index of each pixel, or three, a colour'
        )
    if channels == 4 and values[..., 3].min(initial=255) < 255:
        raise ValueError(f'{path} has transparent pixels, which have no class: save it without')
    red, green, blue = (values[..., channel] for channel in range(3))
    if not colours and (red == green).all() and (red == blue).all():
        return Values(red, channels)
    return Values(colour_code(*(each.astype('int32') for each in (red, green, blue))), channels)
