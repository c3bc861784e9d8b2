"""How tokens are scaled: token norms answer ``norm(tokens, grid)``."""

from .layer_norm import LN, build_token_norm

__all__ = ['LN', 'build_token_norm']
