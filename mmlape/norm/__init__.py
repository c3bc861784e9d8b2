"""How tokens are scaled: token norms answer ``norm(tokens, grid)``."""

from .build import build_token_norm
from .dtn import DTN
from .layer_norm import LN

__all__ = ['DTN', 'LN', 'build_token_norm']
