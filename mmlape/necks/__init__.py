"""Between a plain ViT and a head: maps of several strides from one, and norms of maps."""

from .map_norms import LN2d, MapNorms
from .simple_pyramid import SimpleFeaturePyramid

__all__ = ['LN2d', 'MapNorms', 'SimpleFeaturePyramid']
