"""Networks for dense prediction, made of the other rooms' parts."""

from .base import Backbone
from .pvt import PyramidVisionTransformer, PyramidVisionTransformerV2
from .vit import VisionTransformer
from .vit_adapter import ViTAdapter

__all__ = [
    'Backbone',
    'PyramidVisionTransformer',
    'PyramidVisionTransformerV2',
    'ViTAdapter',
    'VisionTransformer',
]
