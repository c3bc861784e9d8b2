"""Position inside the attention."""

from .base import AttentionPosition, InsidePlan
from .gabor import GaborAttention
from .relative_bias import RelativePositionBias
from .rotary import RotaryPosition

__all__ = [
    'AttentionPosition',
    'GaborAttention',
    'InsidePlan',
    'RelativePositionBias',
    'RotaryPosition',
]
