"""Where a token is: embeddings, and how they join a network."""

from .cache import PlanCache, PlanKeeper, fold_plans
from .embedding import PositionEmbedding, resize_table
from .gabor import GaborPosition
from .gabor_attention import GaborAttention
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
    'GaborAttention',
    'GaborPosition',
    'JoinedPosition',
    'Joining',
    'LaPE',
    'LaPEWarmStart',
    'LearnedPosition',
    'NoPosition',
    'PlanCache',
    'PlanKeeper',
    'PositionEmbedding',
    'PositionPlan',
    'RelativePositionBias',
    'SharedJoining',
    'SinusoidalPosition',
    'UnsharedJoining',
    'fold_plans',
    'resize_table',
]
