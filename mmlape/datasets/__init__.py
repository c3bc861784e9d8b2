"""The data sets that are built, not downloaded: of the quick start, of the experiments, and for classifiers."""

from .digit_cells import build_digit_cells, cell_classes
from .digit_images import DigitImages
from .digit_scenes import DIGIT_CLASSES, SCENE_CLASSES, build_digit_scenes
from .list_ops import ListOps, build_list_ops

__all__ = [
    'DIGIT_CLASSES',
    'SCENE_CLASSES',
    'DigitImages',
    'ListOps',
    'build_digit_cells',
    'build_digit_scenes',
    'build_list_ops',
    'cell_classes',
]
