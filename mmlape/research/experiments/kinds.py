"""Images of nuclei by their kind: dark fluorescence, bright field, coloured histology."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.registry import DATASETS, init_default_scope

from mmlape.apps.inference.results import read_picture

KINDS = ('dark', 'coloured', 'inverted')
_COLOUR, _BRIGHT = 10, 110  # mean difference of an image's channels, and its mean, of 255


def kind_of(image: np.ndarray) -> str:
    """``'dark'``, ``'bright'`` or ``'coloured'``, of an image ``(H, W, 3)`` of uint8."""
    if np.ptp(image, axis=2).mean() > _COLOUR:
        return 'coloured'
    return 'bright' if image.mean() > _BRIGHT else 'dark'


def shown_as(view: str, image: np.ndarray) -> np.ndarray | None:
    """The image in one of the views :data:`KINDS`; None if it has no place there.

    ``'dark'`` and ``'coloured'`` are images of these kinds; ``'inverted'`` are dark ones with their values inverted,
    instead of bright ones, of which a data set may have none.
    """
    kind = kind_of(image)
    if view == 'inverted':
        return 255 - image if kind == 'dark' else None
    return image if kind == view else None


def with_rare_kinds(dataset: dict[str, Any], times: int) -> dict[str, Any]:
    """The config of a data set in which images that are not dark are seen ``times`` times an epoch."""
    init_default_scope('mmdet')
    built = DATASETS.build(dataset)
    paths = [built.get_data_info(number)['img_path'] for number in range(len(built))]
    rare = [n for n, path in enumerate(paths) if kind_of(read_picture(path)) != 'dark']
    if not rare:
        raise ValueError(f'all {len(paths)} training images are dark')
    again = dict(type='RepeatDataset', times=times - 1, dataset={**dataset, 'indices': rare})
    return dict(type='ConcatDataset', datasets=[dataset, again])
