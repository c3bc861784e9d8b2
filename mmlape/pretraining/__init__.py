"""Classifiers around our backbones, to pre-train them on ImageNet with timm's or MMPretrain's tools.

:mod:`mmlape.pretraining.timm_models` registers them with timm: ``import mmlape`` imports it as soon as timm is
imported.
"""

from mmlape.imports import on_first_use

__getattr__, __dir__, __all__ = on_first_use(
    __name__, {'classifier': ('Classifier', 'PyramidClassifier', 'ViTClassifier')}
)
__all__ += ['timm_models']
