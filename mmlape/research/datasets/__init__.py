"""The data sets that are built, not downloaded: of the quick start, of the experiments, and for classifiers."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'classification': ('DigitImages', 'ListOps'),
        'digits': ('DIGIT_CLASSES', 'SCENE_CLASSES', 'build_digit_cells', 'build_digit_scenes', 'cell_classes'),
        'list_ops': ('build_list_ops',),
        'panoptic': ('LoadPanopticMap', 'PanopticQuality'),
    },
)  # fmt: skip
