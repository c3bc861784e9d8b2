"""Faster on CPUs: ``mmlape.cpu.optimize(model)`` puts operators in C++ into a model. Nothing else uses this package.

Its modules are imported on first use: ``wait_policy`` must run before PyTorch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .replace import optimize

__all__ = ['optimize']


def __getattr__(name: str) -> Any:
    if name == 'optimize':
        from .replace import optimize

        return optimize
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
