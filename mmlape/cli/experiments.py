"""Command line of the programs of experiments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

from mmlape.shipped import output_folder, shipped_folder

from .arguments import NEW_FOLDER, Parser, at_least
from .program import command_line, continue_with, run_program, stop_with_message

COUNT = at_least(1)
OPTIONS: dict[str, dict[str, Any]] = {
    'seeds': dict(type=COUNT, default=3, help='runs of each variant (%(default)s)'),
    'only': dict(metavar='VARIANT', action='append', help='only this one (may be repeated)'),
    'workers': dict(type=COUNT, help='runs at a time; default: one for each core, at most 4'),
    'iterations': dict(type=COUNT, help="of each training; default: the config's"),
    'work_dir': dict(type=NEW_FOLDER, help='folder of logs and records (%(default)s)'),
    'data_root': dict(type=NEW_FOLDER, help='folder of the data (%(default)s)'),
    'table': dict(action='store_true', help='run nothing, show the current results'),
    'write_docs': dict(action='store_true', help='update pages and records of this clone'),
}


def parser_of(name: str, description: str, **changes: dict | None) -> argparse.ArgumentParser:
    """The parser of ``mmlape experiment NAME``.

    Args:
        name: Of the experiment, '' for those on real images.
        description: Its first line is shown.
        changes: What differs from the usual options (:data:`OPTIONS`), or a new one; None for one that it has not.
    """
    command = f'experiment {name}'.strip()
    examples = ('--seeds 1', '--seeds 5') if name else ('--list', 'camvid --data data/camvid')
    parser = Parser(command, description.splitlines()[0], *examples)
    folder = output_folder() / 'work_dirs' / command.replace(' ', '_')
    parser.set_defaults(
        command=command,
        module=f'mmlape.research.experiments.{name or "evidence"}',
    )
    for option in dict.fromkeys([*OPTIONS, *changes]):
        given = changes.get(option, {})
        if given is not None:
            usual = OPTIONS.get(option, {})
            usual = {**usual, 'default': folder} if option == 'work_dir' else usual
            parser.add_argument(f'--{option.replace("_", "-")}', **{**usual, **given})
    return parser


def run(parse: Callable[[], argparse.Namespace]) -> None:
    """Run the experiment of the options that ``parse`` returns; errors and Ctrl-C end the program with a line."""

    def main() -> None:
        options = parse()
        print('Loading PyTorch and OpenMMLab ...', flush=True)
        continue_with(command_line(options.command))
        with stop_with_message(RuntimeError, ValueError, OSError):
            module = import_module(options.module)
            module.run_experiment(options, shipped_folder('tools').parent)

    run_program(main, logs=True)
