"""Operators for CPUs: in C++, and products of matrices by the faster of PyTorch's libraries."""

from .attention import attention
from .deformable_sampling import deformable_sampling
from .dtn import dtn
from .library import is_served
from .matrix_product import outer_product, product
from .surroundings import is_looked_at

__all__ = [
    'attention',
    'deformable_sampling',
    'dtn',
    'is_looked_at',
    'is_served',
    'outer_product',
    'product',
]
