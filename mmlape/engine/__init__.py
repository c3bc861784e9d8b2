"""What training needs beyond MMEngine."""

from .check_data import CheckDataHook, EarlyHookRunner
from .dtn_ratio_hook import DTNRatioHook
from .environment import environment_options, vit_arch, vit_weights
from .layer_decay import LayerDecayOptimizerConstructor
from .resume_check import ResumeCheckHook

__all__ = [
    'CheckDataHook',
    'DTNRatioHook',
    'EarlyHookRunner',
    'LayerDecayOptimizerConstructor',
    'ResumeCheckHook',
    'environment_options',
    'vit_arch',
    'vit_weights',
]
