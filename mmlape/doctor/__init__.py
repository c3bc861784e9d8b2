"""``mmlape doctor``: is everything there that a training needs? Works where packages are missing or broken."""

from .check import Check, examine, exit_code, table

__all__ = ['Check', 'examine', 'exit_code', 'table']
