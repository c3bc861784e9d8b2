"""Position embeddings: one row for every token of any grid."""

from .base import PositionEmbedding, resize_table
from .gabor import GaborPosition
from .learned import LearnedPosition
from .sinusoidal import FixedPosition, NoPosition, SinusoidalPosition

__all__ = [
    'FixedPosition',
    'GaborPosition',
    'LearnedPosition',
    'NoPosition',
    'PositionEmbedding',
    'SinusoidalPosition',
    'resize_table',
]
