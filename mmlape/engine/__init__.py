"""What training needs beyond MMEngine."""

from .check_data import CheckDataHook, EarlyHookRunner
from .dtn_ratio_hook import DTNRatioHook
from .environment import environment_options, vit_arch, vit_weights
from .layer_decay import LayerDecayOptimizerConstructor

__all__ = [
    'CheckDataHook',
    'DTNRatioHook',
    'EarlyHookRunner',
    'LayerDecayOptimizerConstructor',
    'environment_options',
    'vit_arch',
    'vit_weights',
]
