"""Position embeddings: one row for every token of any grid."""

from .base import PositionEmbedding, resize_table
from .factorized import FactorizedPosition
from .gabor import GaborPosition
from .learned import LearnedPosition
from .merged import MergedPosition
from .sinusoidal import FixedPosition, NoPosition, SinusoidalPosition

__all__ = [
    'FactorizedPosition',
    'FixedPosition',
    'GaborPosition',
    'LearnedPosition',
    'MergedPosition',
    'NoPosition',
    'PositionEmbedding',
    'SinusoidalPosition',
    'resize_table',
]
