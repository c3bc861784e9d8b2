"""Faster on CPUs: ``mmlape.cpu.optimize(model)`` puts operators in C++ into a model. Nothing else uses this package.

Its modules are imported on first use: ``wait_policy`` must run before PyTorch is imported.
"""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, {'replace': ('optimize',)})
