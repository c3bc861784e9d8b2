"""Answers: a trained detector or segmentor on images, large ones in tiles."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'model': ('Model', 'load'),
        'results': ('MaskCrop', 'Result', 'read_image'),
        'tiles': ('Tile', 'merge_boxes', 'merge_label_maps', 'tiles_of'),
    },
)
