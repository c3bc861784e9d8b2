"""What training needs beyond MMEngine."""

from .check_data import (
    CheckDataHook,
    DataError,
    EarlyHookRunner,
    check_config,
    check_data_is_there,
)
from .check_weights import CheckWeightsHook
from .checkpoint_hook import CheckpointHook, UnsavedError
from .cpu_hook import CpuHook
from .dtn_ratio_hook import DTNRatioHook
from .environment import environment_options, vit_arch, vit_weights
from .exact_resume import ExactResumeHook
from .fsdp import FSDPStrategy, wrap_blocks
from .layer_decay import LayerDecayOptimizerConstructor
from .merged_groups import MergedGroupsOptimizerConstructor
from .non_finite_hook import NonFiniteError, StopAtNonFiniteHook
from .position_only_hook import PositionOnlyHook
from .removed_hooks import HungProcessHook
from .resume_check import ResumeCheckHook
from .rsqrt_lr import RsqrtLR
from .safe_loading_hook import SafeLoadingHook

__all__ = [
    'CheckDataHook',
    'CheckWeightsHook',
    'CheckpointHook',
    'CpuHook',
    'DTNRatioHook',
    'DataError',
    'EarlyHookRunner',
    'ExactResumeHook',
    'FSDPStrategy',
    'HungProcessHook',
    'LayerDecayOptimizerConstructor',
    'MergedGroupsOptimizerConstructor',
    'NonFiniteError',
    'PositionOnlyHook',
    'ResumeCheckHook',
    'RsqrtLR',
    'SafeLoadingHook',
    'StopAtNonFiniteHook',
    'UnsavedError',
    'check_config',
    'check_data_is_there',
    'environment_options',
    'vit_arch',
    'vit_weights',
    'wrap_blocks',
]
