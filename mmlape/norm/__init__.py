"""How tokens are scaled: token norms answer ``norm(tokens, layout)``."""

from .build import build_token_norm, check_norm_cfg, norm_class
from .dtn import DTN
from .layer_norm import LN
from .power_norm import PowerNorm
from .simple_norms import ScaleNorm, TokenBN, TokenGN, TokenIN
from .switchable_norm import SwitchableNorm
from .token_norm import TokenNorm
from .token_rms import TokenRMS

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
    'TokenRMS',
    'build_token_norm',
    'check_norm_cfg',
    'norm_class',
]
