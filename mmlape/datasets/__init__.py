"""The small data set that the quick start builds for itself."""

from .digit_scenes import DIGIT_CLASSES, SCENE_CLASSES, build_digit_scenes

__all__ = ['DIGIT_CLASSES', 'SCENE_CLASSES', 'build_digit_scenes']
