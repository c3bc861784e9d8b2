"""Where a token is: embeddings, and how they join a network."""

from .cache import PlanCache
from .embedding import PositionEmbedding, resize_table
from .gabor import GaborPosition
from .joined import JoinedPosition
from .joining import (
    DefaultJoining,
    Joining,
    LaPE,
    PositionPlan,
    SharedJoining,
    UnsharedJoining,
)
from .learned import LearnedPosition
from .relative import AttentionPosition, RelativePositionBias
from .sinusoidal import FixedPosition, NoPosition, SinusoidalPosition
from .warm_start import LaPEWarmStart

__all__ = [
    'AttentionPosition',
    'DefaultJoining',
    'FixedPosition',
    'GaborPosition',
    'JoinedPosition',
    'Joining',
    'LaPE',
    'LaPEWarmStart',
    'LearnedPosition',
    'NoPosition',
    'PlanCache',
    'PositionEmbedding',
    'PositionPlan',
    'RelativePositionBias',
    'SharedJoining',
    'SinusoidalPosition',
    'UnsharedJoining',
    'resize_table',
]
