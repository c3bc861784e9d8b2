"""Position inside the attention."""

from .base import AttentionPosition, InsidePlan
from .gabor import GaborAttention
from .quadratic_bias import QuadraticBias
from .relative_bias import RelativePositionBias
from .rotary import RotaryPosition

__all__ = [
    'AttentionPosition',
    'GaborAttention',
    'InsidePlan',
    'QuadraticBias',
    'RelativePositionBias',
    'RotaryPosition',
]
