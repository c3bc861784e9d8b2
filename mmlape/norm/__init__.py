"""How tokens are scaled: token norms answer ``norm(tokens, grid)``."""

from .build import build_token_norm, check_norm_cfg, is_dtn
from .dtn import DTN
from .layer_norm import LN
from .power_norm import PowerNorm
from .switchable_norm import SwitchableNorm
from .token_norm import ScaleNorm, TokenBN, TokenGN, TokenIN, TokenNorm

__all__ = [
    'DTN',
    'LN',
    'PowerNorm',
    'ScaleNorm',
    'SwitchableNorm',
    'TokenBN',
    'TokenGN',
    'TokenIN',
    'TokenNorm',
    'build_token_norm',
    'check_norm_cfg',
    'is_dtn',
]
