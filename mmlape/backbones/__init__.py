"""Networks for dense prediction, made of the other rooms' parts."""

from .adapter import ViTAdapter
from .base import Backbone
from .families import (
    CeiT,
    LeViT,
    PyramidVisionTransformer,
    PyramidVisionTransformerV2,
    SwinTransformer,
    VisionTransformer,
)
from .network import StagedTransformer
from .stage import Stage

__all__ = [
    'Backbone',
    'CeiT',
    'LeViT',
    'PyramidVisionTransformer',
    'PyramidVisionTransformerV2',
    'Stage',
    'StagedTransformer',
    'SwinTransformer',
    'ViTAdapter',
    'VisionTransformer',
]
