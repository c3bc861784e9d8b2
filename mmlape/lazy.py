"""Lazy imports (PEP 562) for packages that commands import before they have parsed their options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its modules on first use.

    Args:
        package: Its ``__name__``.
        names: The public names by the module that has them; ``'.other.module'`` is one of the package above.
    """
    modules = {name: module for module, public in names.items() for name in public}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        return getattr(import_module(f'.{modules[name]}', package), name)

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names_of_package, sorted(modules)
