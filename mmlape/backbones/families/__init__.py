"""One file for each family of networks: its parts and architectures."""

from .ceit import CeiT
from .compact import CompactTransformer
from .levit import LeViT
from .pvt import PyramidVisionTransformer, PyramidVisionTransformerV2
from .sequence import SequenceTransformer
from .swin import SwinTransformer
from .t2t import T2TViT
from .vit import VisionTransformer

__all__ = [
    'CeiT',
    'CompactTransformer',
    'LeViT',
    'PyramidVisionTransformer',
    'PyramidVisionTransformerV2',
    'SequenceTransformer',
    'SwinTransformer',
    'T2TViT',
    'VisionTransformer',
]
