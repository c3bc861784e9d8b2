"""Operators in C++ for CPUs."""

from .deformable_sampling import deformable_sampling
from .dtn import dtn
from .library import is_served

__all__ = ['deformable_sampling', 'dtn', 'is_served']
