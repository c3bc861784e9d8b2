"""What training needs beyond MMEngine."""

from .check_data import CheckDataHook, EarlyHookRunner
from .dtn_ratio_hook import DTNRatioHook
from .environment import environment_options, vit_arch, vit_weights

__all__ = [
    'CheckDataHook',
    'DTNRatioHook',
    'EarlyHookRunner',
    'environment_options',
    'vit_arch',
    'vit_weights',
]
