"""What a user can write: registered types, names of packages, commands with their options."""

import argparse
import importlib
import pkgutil
import runpy
import sys
import types
from unittest.mock import patch

import mmlape
import mmlape.registry
from mmlape.__main__ import commands

REGISTRIES = {
    name: value
    for name, value in vars(mmlape.registry).items()
    if isinstance(value, mmlape.registry.ChildRegistry)
}


def public_names() -> dict[str, list[str]]:
    """Sorted names of each kind: ``registry HOOKS``, ``package mmlape.training``, ``command train``, and more."""
    names = {'commands': list(commands())}
    importlib.import_module(
        'mmlape.research.pretraining.dino'
    )  # configs name it in `custom_imports`
    for name, registry in REGISTRIES.items():
        names[f'registry {name}'] = list(registry.module_dict)
    folders = map(importlib.import_module, ('mmlape', 'mmlape.apps', 'mmlape.research'))
    found = [
        each for of in folders for each in pkgutil.iter_modules(of.__path__, f'{of.__name__}.')
    ]
    packages = [each.name for each in found if each.ispkg]
    packages += [
        f'mmlape.{name}' for name in ('necks', 'registry', 'research.pretraining.dino', 'doctor')
    ]
    for package in ['mmlape', *packages]:
        found = vars(importlib.import_module(package))
        names[f'package {package}'] = list(found.get('__all__') or _offered(found))
    for command, path in commands().items():
        if path.suffix == '.py':
            names[f'command {command}'] = options_of(path)
    return {kind: sorted(found) for kind, found in sorted(names.items())}


def _offered(found: dict) -> list[str]:
    """Names that a package without ``__all__`` has from its modules."""
    return [
        name
        for name, value in found.items()
        if not name.startswith('_') and not isinstance(value, types.ModuleType)
    ]


def options_of(path) -> list[str]:
    """The options that a tool's parser takes, those of its subcommands too."""
    parser = parser_of(path)
    return _options(parser) if parser else []  # timm_run hands all its arguments on


def parser_of(path) -> argparse.ArgumentParser | None:
    """The parser of a tool, which does not get further."""
    found = []

    class Asked(Exception):  # noqa: N818
        """The tool has made its parser."""

    def remember(parser, *_, **__):
        found.append(parser)
        raise Asked

    changes = dict.fromkeys(('parse_args', 'parse_known_args'), remember)
    with (
        patch.multiple(argparse.ArgumentParser, **changes),
        patch.object(sys, 'argv', [str(path)]),
        patch.object(sys, 'path', [str(path.parent), *sys.path]),
    ):
        try:
            runpy.run_path(str(path), run_name='__main__')
        except Asked:
            return found[0]
        except SystemExit:
            return None
    raise AssertionError(f'{path.name} has no parser of arguments')


def _options(parser) -> list[str]:
    names = []
    for action in parser._actions:
        names += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                names += [name, *(f'{name} {option}' for option in _options(below))]
    return names
