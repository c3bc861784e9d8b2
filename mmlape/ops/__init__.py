"""Operators for CPUs: in C++, and products of matrices by the faster of PyTorch's libraries."""

from .deformable_sampling import deformable_sampling
from .dtn import dtn
from .library import is_served
from .matrix_product import is_looked_at, outer_product, product

__all__ = ['deformable_sampling', 'dtn', 'is_looked_at', 'is_served', 'outer_product', 'product']
