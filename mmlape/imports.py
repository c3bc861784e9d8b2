"""What is imported when: names of ours on first use, and modules of ours as soon as others' are there.

Standard library alone: commands answer before PyTorch is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ['follow', 'on_first_use']


def on_first_use(
    package: str, public: Mapping[str, Iterable[str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its modules on first use (PEP 562).

    Whatever is a module of the package is there as well, as after an import of it.

    Args:
        package: Its ``__name__``.
        public: By module, the names that the package has from it; none of them is the name of a module. Default: none.
    """
    places = {name: module for module, names in (public or {}).items() for name in names}

    def get(name: str) -> Any:
        if name in places:
            value = getattr(import_module(f'{package}.{places[name]}'), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith('_') and importlib.util.find_spec(f'{package}.{name}'):
            return import_module(f'{package}.{name}')
        raise AttributeError(f'module {package!r} has no attribute {name!r}')

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names, sorted(places)


def follow(followers: Mapping[str, Iterable[str]]) -> None:
    """Import modules right after others, or now where those are there already.

    Args:
        followers: By the name of a module, those to import after it. They may import it, and are imported once: one
            that imports it itself is not waited for.
    """
    waiting = {name: tuple(ours) for name, ours in followers.items() if name not in sys.modules}
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))
    for name in followers.keys() - waiting.keys():
        _import_all(followers[name])


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        import_module(name)


class _Finder(MetaPathFinder):
    """Finds a module as it would be found without this, and notes when it is imported."""

    def __init__(self, followers: dict[str, tuple[str, ...]]) -> None:
        self.followers = followers

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.followers:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, self.followers[name])
        return spec


class _Followed(Loader):
    """A loader that steps back as soon as the module is to be executed, and imports the followers afterwards."""

    def __init__(self, loader: Loader, followers: tuple[str, ...]) -> None:
        self.loader, self.followers = loader, followers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        _import_all(self.followers)
