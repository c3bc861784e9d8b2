"""Networks for dense prediction, made of the other rooms' parts."""

from .adapter import ViTAdapter
from .base import Backbone
from .families import (
    CeiT,
    CompactTransformer,
    LeViT,
    PyramidVisionTransformer,
    PyramidVisionTransformerV2,
    SequenceTransformer,
    SwinTransformer,
    T2TViT,
    VisionTransformer,
)
from .network import StagedTransformer
from .position_only import freeze_all_but_position
from .stage import Stage

__all__ = [
    'Backbone',
    'CeiT',
    'CompactTransformer',
    'LeViT',
    'PyramidVisionTransformer',
    'PyramidVisionTransformerV2',
    'SequenceTransformer',
    'Stage',
    'StagedTransformer',
    'SwinTransformer',
    'T2TViT',
    'ViTAdapter',
    'VisionTransformer',
    'freeze_all_but_position',
]
