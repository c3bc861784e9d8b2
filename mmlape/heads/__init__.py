"""Heads and parts of heads that MMDetection and MMSegmentation do not have.

Their modules import a toolbox, so they are imported when a config, or code, first names what is in them.
"""

from mmlape.lazy import lazy_names
from mmlape.registry import MODELS, TASK_UTILS

# The registries list what is registered; only a base class for other heads is listed here.
_MODULES = {'Float32Losses': 'detection'} | {
    name: module.removeprefix(f'{__name__}.')
    for registry in (MODELS, TASK_UTILS)
    for name, module in registry.by_name.items()
    if module.startswith(f'{__name__}.')
}
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {each: [n for n, module in _MODULES.items() if module == each] for each in _MODULES.values()},
)
