"""Classifiers around our backbones, to pre-train them on ImageNet with timm's or MMPretrain's tools.

Importing it registers the models of :mod:`mmlape.pretraining.timm_models` with timm.
"""

from . import timm_models
from .classifier import Classifier, PyramidClassifier, ViTClassifier

__all__ = ['Classifier', 'PyramidClassifier', 'ViTClassifier', 'timm_models']
