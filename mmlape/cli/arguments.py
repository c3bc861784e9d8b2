"""Arguments that commands share. No slow imports."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mmlape.shipped import find_config

AMP_DTYPES = dict(fp16='float16', bf16='bfloat16', float16='float16', bfloat16='bfloat16')
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


class ConfigOptions(argparse.Action):
    """MMEngine's ``DictAction``, imported when it is used."""

    def __call__(self, *arguments: Any) -> None:
        for text in arguments[2]:
            if '=' not in text[1:]:
                arguments[0].error(f'--cfg-options takes KEY=VALUE without spaces, got {text!r}')
        from mmengine.config import DictAction

        DictAction(self.option_strings, self.dest, self.nargs)(*arguments)


def existing_config(text: str) -> str:
    """An argument's type: ``text``, if it is a file or the name of a shipped config."""
    try:
        find_config(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_common_options(
    parser: argparse.ArgumentParser, config: Callable[[str], str] = existing_config
) -> None:
    """Add the ``config``, of this type, and the options that upstream's tools have in common."""
    parser.add_argument(
        'config', type=config, help='a file, or the name of a config that comes with mmlape'
    )
    parser.add_argument(
        '--work-dir', help='folder of logs, checkpoints and results; default: work_dirs/<config>'
    )
    parser.add_argument(
        '--data-root',
        metavar='FOLDER',
        help="where the data are, instead of the config's data_root",
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
        help='load what fits the model from the checkpoint, and log what stays random',
    )  # fmt: skip
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust``, for commands that build a model by the config that comes with its weights."""
    parser.add_argument(
        '--trust', action='store_true',
        help='run the config that comes with the weights, with all that it names: only if you trust its author',
    )  # fmt: skip
