"""Operators in C++ for CPUs."""

from .deformable_sampling import deformable_sampling, is_served
from .dtn import dtn

__all__ = ['deformable_sampling', 'dtn', 'is_served']
