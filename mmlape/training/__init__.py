"""Training: hooks, optimizers and schedules beyond MMEngine's."""

from .cached_features import CachedFeaturesHook, SeededViews
from .check_data import (
    CheckDataHook,
    DataError,
    EarlyHookRunner,
    check_config,
    check_data_is_there,
)
from .check_names import check_custom_keys
from .checkpoint_hooks import (
    CheckpointHook,
    CheckWeightsHook,
    ResumeCheckHook,
    SafeLoadingHook,
    UnsavedError,
)
from .devices import Bfloat16Hook, CpuHook, DeformableAttentionHook, GpuHook
from .eomt_hook import MaskAnnealingHook
from .exact_resume import ExactResumeHook
from .last_checkpoint import existing_checkpoint, last_complete_checkpoint
from .optimizers import (
    LayerDecayOptimizerConstructor,
    MergedGroupsOptimizerConstructor,
    RsqrtLR,
    TwoStagePolyLR,
)
from .paper_hooks import DTNRatioHook, PositionOnlyHook
from .sharding import FSDPStrategy, wrap_blocks
from .stop_hooks import NonFiniteError, StopAtNonFiniteHook

__all__ = [
    'Bfloat16Hook',
    'CachedFeaturesHook',
    'CheckDataHook',
    'CheckWeightsHook',
    'CheckpointHook',
    'CpuHook',
    'DTNRatioHook',
    'DataError',
    'DeformableAttentionHook',
    'EarlyHookRunner',
    'ExactResumeHook',
    'FSDPStrategy',
    'GpuHook',
    'LayerDecayOptimizerConstructor',
    'MaskAnnealingHook',
    'MergedGroupsOptimizerConstructor',
    'NonFiniteError',
    'PositionOnlyHook',
    'ResumeCheckHook',
    'RsqrtLR',
    'SafeLoadingHook',
    'SeededViews',
    'StopAtNonFiniteHook',
    'TwoStagePolyLR',
    'UnsavedError',
    'check_config',
    'check_custom_keys',
    'check_data_is_there',
    'existing_checkpoint',
    'last_complete_checkpoint',
    'wrap_blocks',
]
