"""mmlape: position embeddings and token normalisation for MMDetection and MMSegmentation.

``import mmlape`` makes these names available and does nothing more: it imports neither PyTorch nor MMEngine and changes
nothing of any other package. Subpackages are imported on first use (PEP 562); ``type='mmlape.X'`` in a config makes
MMEngine import :mod:`mmlape.registry` by itself. Everything that acts on the process is called by its name:

* :func:`mmlape.load`: a trained model that predicts.
* :func:`mmlape.safe_loading`: MMEngine reads checkpoints without running code that is in them.
* ``import mmlape.timm_models``: timm's ``create_model`` knows our classifiers.
"""

from importlib import import_module
from typing import Any

from .version import __version__

_SUBPACKAGES = (
    'apps', 'backbones', 'checkpoints', 'cli', 'cpu', 'gpu', 'heads', 'layers', 'necks', 'norm', 'position',
    'registry', 'research', 'training',
)  # fmt: skip
_FUNCTIONS = {'load': 'apps.inference', 'safe_loading': 'checkpoints'}

__all__ = ['__version__', *_FUNCTIONS, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        module = import_module(f'mmlape.{_FUNCTIONS.get(name, name)}')
        return getattr(module, name) if name in _FUNCTIONS else module
    except ImportError:
        from .compatibility import stack_problem

        if problem := stack_problem():
            raise ImportError(problem) from None
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
