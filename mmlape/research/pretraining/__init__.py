"""Classifiers around our backbones, to pre-train them on ImageNet with timm's or MMPretrain's tools.

``import mmlape.timm_models`` registers them with timm.
"""

from .classifier import Classifier, PyramidClassifier, ViTClassifier

__all__ = ['Classifier', 'PyramidClassifier', 'ViTClassifier']
