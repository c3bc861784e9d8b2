"""What training needs beyond MMEngine."""

from .check_data import CheckDataHook, EarlyHookRunner
from .checkpoint_hook import CheckpointError, CheckpointHook
from .dtn_ratio_hook import DTNRatioHook
from .environment import environment_options, vit_arch, vit_weights
from .exact_resume import ExactResumeHook
from .fsdp import FSDPStrategy, wrap_blocks
from .layer_decay import LayerDecayOptimizerConstructor
from .resume_check import ResumeCheckHook

__all__ = [
    'CheckDataHook',
    'CheckpointError',
    'CheckpointHook',
    'DTNRatioHook',
    'EarlyHookRunner',
    'ExactResumeHook',
    'FSDPStrategy',
    'LayerDecayOptimizerConstructor',
    'ResumeCheckHook',
    'environment_options',
    'vit_arch',
    'vit_weights',
    'wrap_blocks',
]
