"""Where a token is: embeddings, how they join a network, and position inside the attention."""

from .attention_position import AttentionPlan, AttentionPosition
from .embeddings import (
    FactorizedPosition,
    LearnedPosition,
    MergedPosition,
    PositionEmbedding,
    resize_table,
)
from .fixed_embeddings import FixedPosition, GaborPosition, NoPosition, SinusoidalPosition
from .gabor_attention import GaborAttention, QuadraticBias
from .joining import (
    JOININGS,
    POSITIONS,
    DefaultJoining,
    JoinedPosition,
    Joining,
    LaPE,
    LaPEWarmStart,
    PlanCachingModule,
    PositionPlan,
    SharedJoining,
    UnsharedJoining,
)
from .relative_bias import (
    RelativePositionBias,
    RelativePositionMlp,
    SharedRelativePositionBias,
    SharedRelativePositionMlp,
)
from .rotary import MixedRotaryPosition, RotaryPosition
