"""What training needs beyond MMEngine."""

from .check_data import CheckDataHook, EarlyHookRunner
from .environment import environment_options, vit_arch, vit_weights

__all__ = ['CheckDataHook', 'EarlyHookRunner', 'environment_options', 'vit_arch', 'vit_weights']
