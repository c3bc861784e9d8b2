"""Between a ViT and a head: maps of several strides from one, norms of maps, vectors of several layers."""

from .map_norms import ConcatVectors, LN2d, MapNorms
from .simple_pyramid import SimpleFeaturePyramid
