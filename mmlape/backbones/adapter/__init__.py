"""A plain ViT with a spatial pyramid beside it."""

from .vit_adapter import ViTAdapter

__all__ = ['ViTAdapter']
