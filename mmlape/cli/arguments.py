"""Arguments of commands: options that training and testing share, and configs and tools as package resources.

Imports nothing that takes time: arguments are parsed before PyTorch is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from difflib import SequenceMatcher
from importlib import resources
from pathlib import Path
from typing import Any

AMP_DTYPES = dict(fp16='float16', bf16='bfloat16', float16='float16', bfloat16='bfloat16')
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
PACKAGE = Path(str(resources.files('mmlape')))


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


def shipped_folder(name: str) -> Path:
    """``configs`` or ``tools``: in the clone of an editable install, else inside the package.

    Raises:
        ValueError: If there is neither.
    """
    for place in (PACKAGE / '.mim', PACKAGE.parent):
        if (place / name).is_dir():
            return place / name
    raise ValueError(f'this installation of mmlape has no {name}; install it again with pip')


def shipped_configs() -> dict[str, Path]:
    """Every config that can be run, by its path in ``configs`` without ``.py``: ``'lape/mask-rcnn_...'``."""
    folder = shipped_folder('configs')
    paths = sorted(folder.rglob('*.py'))
    names = {path.relative_to(folder).with_suffix('').as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if not name.startswith('_base_/')}


def find_config(text: str) -> Path:
    """A config by its file, or a shipped one by its name.

    Args:
        text: Path of a file; or ``mask-rcnn_...``, ``lape/mask-rcnn_...`` or ``configs/lape/mask-rcnn_...``, with or
            without ``.py``.

    Raises:
        ValueError: If there is no such file and no, or more than one, shipped config of this name; the message names
            the nearest.
    """
    if Path(text).is_file():
        return Path(text)
    configs = shipped_configs()
    name = text.removesuffix('.py').removeprefix('./').removeprefix('configs/')
    found = [key for key in configs if name in (key, key.rpartition('/')[2])]
    if len(found) == 1:
        return configs[found[0]]
    if found:
        raise ValueError(f'{text!r} is the name of several configs: {", ".join(found)}')
    close = sorted(configs, key=lambda key: -_likeness(name, key))[:5]
    lines = ''.join(f'\n  {key}' for key in close)
    raise ValueError(f'{text!r} is neither a file nor a shipped config; the nearest are{lines}')


def _likeness(name: str, key: str) -> float:
    """Shared letters, and the words of ``name`` that the config has."""
    stem, asked = key.rpartition('/')[2], name.rpartition('/')[2]
    words = asked.replace('_', '-').split('-')
    there = sum(word in stem.replace('_', '-').split('-') for word in words) / len(words)
    return SequenceMatcher(None, asked, stem).ratio() + there
