"""The data sets that are built, not downloaded: of the quick start, of the experiments, and for classifiers."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'digit_cells': ('build_digit_cells', 'cell_classes'),
        'digit_images': ('DigitImages',),
        'digit_scenes': ('DIGIT_CLASSES', 'SCENE_CLASSES', 'build_digit_scenes'),
        'list_ops': ('build_list_ops',),
        'list_ops_data': ('ListOps',),
    },
)
