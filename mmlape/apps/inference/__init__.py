"""Answers: a trained detector or segmentor on images, large ones in tiles."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'loading': ('load',),
        'model': ('Model',),
        'results': ('MaskCrop', 'Result', 'read_image', 'read_picture'),
        'tiles': ('LogitMean', 'Tile', 'merge_boxes', 'tiles_of'),
    },
)
