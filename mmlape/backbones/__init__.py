"""Networks for dense prediction, made of the other rooms' parts."""

from .vit import VisionTransformer
from .vit_adapter import ViTAdapter

__all__ = ['ViTAdapter', 'VisionTransformer']
