"""Where a token is: embeddings, how they join a network, and position inside the attention."""

from .embeddings import (
    FactorizedPosition,
    FixedPosition,
    GaborPosition,
    LearnedPosition,
    MergedPosition,
    NoPosition,
    PositionEmbedding,
    SinusoidalPosition,
    resize_table,
)
from .inside import (
    AttentionPosition,
    GaborAttention,
    InsidePlan,
    MixedRotaryPosition,
    QuadraticBias,
    RelativePositionBias,
    RelativePositionMlp,
    RotaryPosition,
    SharedRelativePositionBias,
    SharedRelativePositionMlp,
)
from .joined import JoinedPosition
from .joining import DefaultJoining, Joining, LaPE, SharedJoining, UnsharedJoining
from .named import JOININGS, POSITIONS
from .plan import PlanKeeper, PositionPlan
from .warm_start import LaPEWarmStart

__all__ = [
    'JOININGS',
    'POSITIONS',
    'AttentionPosition',
    'DefaultJoining',
    'FactorizedPosition',
    'FixedPosition',
    'GaborAttention',
    'GaborPosition',
    'InsidePlan',
    'JoinedPosition',
    'Joining',
    'LaPE',
    'LaPEWarmStart',
    'LearnedPosition',
    'MergedPosition',
    'MixedRotaryPosition',
    'NoPosition',
    'PlanKeeper',
    'PositionEmbedding',
    'PositionPlan',
    'QuadraticBias',
    'RelativePositionBias',
    'RelativePositionMlp',
    'RotaryPosition',
    'SharedJoining',
    'SharedRelativePositionBias',
    'SharedRelativePositionMlp',
    'SinusoidalPosition',
    'UnsharedJoining',
    'resize_table',
]
