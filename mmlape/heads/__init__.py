"""Heads and parts of heads that MMDetection and MMSegmentation do not have.

Their modules import a toolbox, so they are imported when a config, or code, first names what is in them.
"""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'detection': ['Float32Losses', 'HungarianAssigner', 'Mask2FormerHead'],
        'segmentation': ['Mask2FormerSegHead'],
        'eomt_detection': ['EoMTHead'],
        'eomt_segmentation': ['EoMTSegHead'],
    },
)
