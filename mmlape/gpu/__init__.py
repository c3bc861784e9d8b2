"""Faster on GPUs: ``mmlape.gpu.optimize(model)`` puts Triton kernels into a model. Nothing else uses this package."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, {'replace': ('optimize',)})
