"""Command line of the programs that build data sets."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path

from .arguments import Parser
from .program import run_program, stop_with_message, usage


def parse_arguments(
    build: Callable, folder: str, description: str, arguments: list[str] | None = None
) -> argparse.Namespace:
    """Every option of ``build``, with its default."""
    name = Path(folder).name
    parser = Parser(f'build {name}', description.splitlines()[0], '', f'elsewhere/{name}')
    parser.add_argument('root', nargs='?', default=folder, help='the folder to build')
    for name, parameter in inspect.signature(build).parameters.items():
        if name == 'root':
            continue
        pair = isinstance(parameter.default, tuple)
        kind = type(parameter.default[0] if pair else parameter.default)
        if name.startswith('min_'):
            kind = float
        parser.add_argument(
            '--' + name.replace('_', '-'),
            type=kind,
            nargs=2 if pair else None,
            default=parameter.default,
            metavar=('FROM', 'TO') if pair else None,
            help='default: %(default)s',
        )
    return parser.parse_args(arguments)


def build_from_command_line(
    build: Callable, folder: str, description: str, arguments: list[str] | None = None
) -> None:
    """Build a data set with the options of the command line."""

    def main() -> None:
        options = vars(parse_arguments(build, folder, description, arguments))
        with usage(), stop_with_message(ModuleNotFoundError):
            build(options.pop('root'), **options)

    run_program(main)
