"""Position inside the attention."""

from .base import AttentionPosition, InsidePlan
from .gabor import GaborAttention
from .quadratic_bias import QuadraticBias
from .relative_bias import RelativePositionBias, SharedRelativePositionBias
from .relative_mlp import RelativePositionMlp, SharedRelativePositionMlp
from .rotary import MixedRotaryPosition, RotaryPosition

__all__ = [
    'AttentionPosition',
    'GaborAttention',
    'InsidePlan',
    'MixedRotaryPosition',
    'QuadraticBias',
    'RelativePositionBias',
    'RelativePositionMlp',
    'RotaryPosition',
    'SharedRelativePositionBias',
    'SharedRelativePositionMlp',
]
