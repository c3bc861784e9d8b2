"""Images that are not 8-bit RGB: what MMCV's loader would make of them is not what they hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mmlape.pixels import TIFFS, is_plain, read_pixels, statistics_of
from mmlape.training.data_audit import evenly_spaced

from .data import OwnData

_MOST = 200  # images that means and deviations are taken from


def loader_of(data: OwnData) -> dict[str, Any] | None:
    """The config of ``mmlape.LoadImage`` for the images of a data set, with the mean and the deviation of each channel
    over at most 200 training images, evenly spread; None if MMCV's loader keeps what they hold.

    The first image decides; a four-channel TIFF has four channels, where a PNG has three and transparency.

    Raises:
        ValueError: If an image that is looked at cannot be read, or has another number of channels.
    """
    paths = _training_images(data)
    first = read_pixels(paths[0])
    as_bands = paths[0].suffix.lower() in TIFFS and first.shape[2] == 4
    if paths[0].suffix.lower() != '.npy' and is_plain(first) and not as_bands:
        return None
    channels, mean, std = statistics_of(evenly_spaced(paths, _MOST))
    return dict(type='mmlape.LoadImage', channels=channels, mean=mean, std=std)


def _training_images(data: OwnData) -> list[Path]:
    """The files of the training part."""
    part = data.train
    if not part.ann_file:
        files = sorted(Path(part.images).rglob(f'*{data.img_suffix}'))
        names = [str(file.relative_to(part.images)) for file in files]
    else:
        written = {os.path.abspath(path): text for path, text in data.files.items()}
        text = written.get(os.path.abspath(part.ann_file))
        text = text if isinstance(text, str) else Path(part.ann_file).read_text('utf-8-sig')
        if data.task == 'segment':
            names = [f'{name}{data.img_suffix}' for name in text.split('\n') if name.strip()]
        else:
            names = [image['file_name'] for image in json.loads(text)['images']]
    return [Path(part.images, name) for name in names]
