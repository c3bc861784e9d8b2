"""One file for each family of networks: its parts and architectures."""

from .ceit import CeiT
from .levit import LeViT
from .pvt import PyramidVisionTransformer, PyramidVisionTransformerV2
from .swin import SwinTransformer
from .vit import VisionTransformer

__all__ = [
    'CeiT',
    'LeViT',
    'PyramidVisionTransformer',
    'PyramidVisionTransformerV2',
    'SwinTransformer',
    'VisionTransformer',
]
