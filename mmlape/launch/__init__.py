"""What the command lines of training and testing share: configs by name, options, processes, resuming."""

from mmlape.shipped import find_config, shipped_configs, shipped_folder

from .options import (
    AMP_DTYPES,
    add_common_options,
    config_of,
    enable_amp,
    enable_lr_scaling,
    existing_checkpoint,
)
from .processes import all_see, joined, main_process_says, stop_with_message
from .resume import build_runner, last_complete_checkpoint, set_resume
from .testing import add_metric, keep_predictions, show_predictions, use_tta
from .weights import weights_only

__all__ = [
    'AMP_DTYPES',
    'add_common_options',
    'add_metric',
    'all_see',
    'build_runner',
    'config_of',
    'enable_amp',
    'enable_lr_scaling',
    'existing_checkpoint',
    'find_config',
    'joined',
    'keep_predictions',
    'last_complete_checkpoint',
    'main_process_says',
    'set_resume',
    'shipped_configs',
    'shipped_folder',
    'show_predictions',
    'stop_with_message',
    'use_tta',
    'weights_only',
]
