"""Operators in C++ for CPUs."""

from .deformable_sampling import deformable_sampling, is_served

__all__ = ['deformable_sampling', 'is_served']
