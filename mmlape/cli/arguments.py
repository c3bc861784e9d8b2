"""Arguments that commands share. No slow imports."""

from __future__ import annotations

import argparse
import glob
import importlib.util
import math
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mmlape.apps.inference.names import existing_model
from mmlape.apps.inference.reading import IMAGES, VIDEOS, below
from mmlape.checks import check_rate, check_target, existing_checkpoint
from mmlape.shipped import find_config

from .program import USAGE

AMP_DTYPES = dict(fp16='float16', bf16='bfloat16', float16='float16', bfloat16='bfloat16')
# Packages of MMEngine's backends for curves; mmlape/cli/options.py has their options.
_LOGGERS = ('tensorboard', 'wandb', 'mlflow')
_DEVICES = ('cpu', 'cuda', 'mps', 'npu', 'xpu', 'mlu', 'musa')
# Files that somebody names by mistake; others are tried, whatever they are called.
_NO_IMAGES = (
    '.txt', '.json', '.csv', '.xml', '.yaml', '.yml', '.md', '.html', '.pdf', '.py', '.pth', '.zip',
)  # fmt: skip
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


class Parser(argparse.ArgumentParser):
    """The options of ``mmlape NAME``: wrong ones end it with one line, and the help ends with examples.

    Args:
        name: Of the command.
        description: One sentence.
        examples: Arguments of two calls.
    """

    def __init__(self, name: str, description: str, *examples: str) -> None:
        lines = [f'  mmlape {name} {example}'.rstrip() for example in examples]
        super().__init__(
            prog=f'mmlape {name}',
            description=description,
            epilog='\n'.join(['examples:', *lines]),
            formatter_class=_Help,
        )

    def error(self, message: str) -> NoReturn:
        """End the program."""
        hint = (
            '' if message.startswith('argument ') else f' (`{self.prog} --help` shows the options)'
        )
        self.exit(USAGE, f'error: {message}{hint}\n')


class _Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Examples are lines to copy."""
        return text if text.startswith('examples:') else super()._fill_text(text, width, indent)


class ConfigOptions(argparse.Action):
    """MMEngine's ``DictAction``, imported when it is used."""

    def __call__(self, *arguments: Any) -> None:
        for text in arguments[2]:
            if '=' not in text[1:]:
                arguments[0].error(f'--cfg-options takes KEY=VALUE without spaces, got {text!r}')
        from mmengine.config import DictAction

        DictAction(self.option_strings, self.dest, self.nargs)(*arguments)


def checked(check: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an argument: what ``check`` makes of it, whose ValueError is the message."""

    def value(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an argument: an integer that is not less, and not more than ``most``."""

    def integer(text: str) -> int:
        if not text.removeprefix('-').isdecimal():
            raise argparse.ArgumentTypeError(f'must be an integer, got {text!r}')
        if int(text) < least:
            raise argparse.ArgumentTypeError(f'must be at least {least}, got {text}')
        if most is not None and int(text) > most:
            raise argparse.ArgumentTypeError(f'must be at most {most}, got {text}')
        return int(text)

    return integer


def _rate(text: str, with_one: bool = True) -> float:
    try:
        return check_rate('it', float(text), with_one=with_one)
    except ValueError:
        raise ValueError(f'must be in [0, 1{"]" if with_one else ")"}, got {text!r}') from None


def _positive(text: str, or_zero: bool = False) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number < math.inf or (or_zero and number == 0)):
        raise ValueError(f'must be a number {"not below" if or_zero else "above"} 0, got {text!r}')
    return number


def _config(text: str) -> str:
    path = find_config(text)
    if path.suffix not in ('.py', '.yml', '.yaml', '.json'):  # which MMEngine reads
        raise ValueError(f'{text!r} is no config: its name must end with .py, .yml, .yaml or .json')
    return text


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError(f'there is no folder {text!r}')
    if not os.listdir(text):
        raise ValueError(f'the folder {text!r} is empty')
    return Path(text)


def _image_folder(text: str, endings: tuple[str, ...] = IMAGES) -> Path:
    folder = _folder(text)
    if not any(path.suffix.lower() in endings for path in below(folder)[0]):
        raise ValueError(
            f'the folder {text!r} has no image{" and no video" * (VIDEOS[0] in endings)} in it'
        )
    return folder


def _data_root(text: str) -> str:
    return text if '://' in text else str(_folder(text))


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise ValueError(f'there is no file {text!r}')
    return Path(text)


def _existing(text: str) -> Path:
    if not Path(text).exists():
        raise ValueError(f'there is no file and no folder {text!r}')
    return Path(text)


def new_folder(text: str) -> Path:
    """The folder, which need not exist; ValueError if nothing can be written there."""
    path = Path(text)
    first = next(each for each in (path, *path.parents, Path()) if os.path.lexists(each))
    if not os.path.isdir(first):
        raise ValueError(f'{str(first)!r} is not a folder')
    if not os.access(first, os.W_OK):
        raise ValueError(f'nothing can be written into {str(first)!r}: permission denied')
    return path


def _new_file(text: str) -> Path:
    if os.path.isdir(text):
        raise ValueError(f'{text!r} is a folder, and must be a file')
    return _new_path(text)


def _new_path(text: str) -> Path:
    new_folder(str(Path(text).parent))
    return Path(text)


def _source(text: str, endings: tuple[str, ...] = (*IMAGES, *VIDEOS)) -> str:
    if text != '-' and not os.path.lexists(text) and not any(glob.iglob(text, recursive=True)):
        raise ValueError(f'{text[:200]!r} is neither a file nor a folder, and no file is named so')
    if os.path.isdir(text):
        _image_folder(text, endings)
    elif Path(text).suffix.lower() in _NO_IMAGES:
        raise ValueError(f'{text[:200]!r} is no image{" and no video" * (VIDEOS[0] in endings)}')
    return text


def _device(text: str) -> str:
    if not re.fullmatch(rf'({"|".join(_DEVICES)})(:\d+)?', text):
        raise ValueError(
            f'must be of {", ".join(_DEVICES)}, with a number or without, got {text!r}'
        )
    return text


def _resume(text: str) -> str:
    return text if text == 'auto' else existing_checkpoint(text)


def _loggers(text: str) -> list[str]:
    names = text.split(',')
    for name in names:
        if name not in _LOGGERS:
            raise ValueError(f'must be of {", ".join(_LOGGERS)}, got {name!r}')
        if importlib.util.find_spec(name) is None:
            raise ValueError(f'{name} needs its package: pip install {name}')
    return names


RATE, RATE_BELOW_ONE = checked(_rate), checked(partial(_rate, with_one=False))
ABOVE_ZERO, ZERO_OR_MORE = checked(_positive), checked(partial(_positive, or_zero=True))
CONFIG, CHECKPOINT, MODEL = map(checked, (_config, existing_checkpoint, existing_model))
FOLDER, FILE, EXISTING = map(checked, (_folder, _file, _existing))
NEW_FOLDER, NEW_FILE, NEW_PATH = map(checked, (new_folder, _new_file, _new_path))
SOURCE, RESUME, LOGGERS, DEVICE = map(checked, (_source, _resume, _loggers, _device))
NEW_CHECKPOINT = checked(lambda text: check_target(_new_file(text)))
IMAGE_FOLDER, IMAGE_SOURCE = checked(_image_folder), checked(partial(_source, endings=IMAGES))
SEED = at_least(0, 2**32 - 1)  # NumPy's


def add_common_options(
    parser: argparse.ArgumentParser, config: Callable[[str], str] = CONFIG
) -> None:
    """Add the ``config``, of this type, and the options that upstream's tools have in common."""
    parser.add_argument(
        'config', type=config, help='a file, or the name of a config that comes with mmlape'
    )
    parser.add_argument(
        '--work-dir',
        type=NEW_FOLDER,
        help='folder of logs, checkpoints and results; default: work_dirs/<config>',
    )
    parser.add_argument(
        '--data-root',
        type=checked(_data_root),
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


def add_config_of_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--trust``, for commands that build a model by the config that comes with its weights."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        '--config', type=CONFIG, help='of a checkpoint without one inside: a file or a name'
    )
    add_trust(either)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument(
        '--device', type=DEVICE, help="'cpu', 'cuda:1', ...; default: a GPU if there is one"
    )


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add ``--trust``, for commands that build a model by the config that comes with its weights."""
    parser.add_argument(
        '--trust', action='store_true',
        help='run the config that comes with the weights, with all that it names: only if you trust its author',
    )  # fmt: skip
