"""What training needs beyond MMEngine."""

from .check_data import CheckDataHook, EarlyHookRunner

__all__ = ['CheckDataHook', 'EarlyHookRunner']
