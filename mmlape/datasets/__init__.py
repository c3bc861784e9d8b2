"""The small data sets that are built, not downloaded: of the quick start, of the experiment on
position, and for classifiers."""

from .digit_cells import build_digit_cells, cell_classes
from .digit_images import DigitImages
from .digit_scenes import DIGIT_CLASSES, SCENE_CLASSES, build_digit_scenes

__all__ = [
    'DIGIT_CLASSES',
    'SCENE_CLASSES',
    'DigitImages',
    'build_digit_cells',
    'build_digit_scenes',
    'cell_classes',
]
