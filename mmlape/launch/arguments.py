"""Options that training and testing share. Nothing is imported that takes time: they are parsed before all else."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mmlape.shipped import find_config

AMP_DTYPES = {
    'fp16': 'float16',
    'bf16': 'bfloat16',
    'float16': 'float16',
    'bfloat16': 'bfloat16',
}
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


class ConfigOptions(argparse.Action):
    """MMEngine's ``DictAction``, which is imported when the option is there."""

    def __call__(self, *arguments: Any) -> None:
        from mmengine.config import DictAction

        DictAction(self.option_strings, self.dest, self.nargs)(*arguments)


def existing_config(text: str) -> str:
    """The type of an argument: ``text`` if it is a file or the name of a shipped config."""
    try:
        find_config(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_common_options(
    parser: argparse.ArgumentParser, config: Callable[[str], str] = existing_config
) -> None:
    """The config, of this type, and the options that upstream's tools have in common."""
    parser.add_argument(
        'config', type=config, help='a file, or the name of a config that comes with mmlape'
    )
    parser.add_argument(
        '--work-dir', help='folder of logs, checkpoints and results; default: work_dirs/<config>'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=ConfigOptions, metavar='KEY=VALUE',
        help='override parts of the config: a.b=1 c=[1,2] d.0.e="text"',
    )  # fmt: skip
    parser.add_argument(
        '--launcher', choices=LAUNCHERS,
        help='what started the processes; default: pytorch under torchrun, else none',
    )  # fmt: skip
    parser.add_argument(
        '--allow-partial', action='store_true',
        help='take of the checkpoint what fits the model, and say what stays random',
    )  # fmt: skip
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)
