"""Where a token is: embeddings, and how they join a network."""

from .embedding import PositionEmbedding, resize_table
from .joining import DefaultJoining, Joining, LaPE, PositionPlan
from .learned import LearnedPosition

__all__ = [
    'DefaultJoining',
    'Joining',
    'LaPE',
    'LearnedPosition',
    'PositionEmbedding',
    'PositionPlan',
    'resize_table',
]
