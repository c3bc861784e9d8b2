"""How tokens are scaled: token norms answer ``norm(tokens, layout)``."""

from .base import LN, TokenNorm, TokenRMS, build_single_norm, build_token_norm, norm_class
from .compared import Derf, DyT, PowerNorm, ScaleNorm, SwitchableNorm, TokenBN, TokenGN, TokenIN
from .dtn import DTN
