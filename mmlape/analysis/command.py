"""What the command lines of ``tools/analysis_tools`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from mmengine.config import Config, DictAction
from mmengine.logging import print_log
from torch import nn

from mmlape.checkpoints import FORMATS
from mmlape.position import NoPosition

from .layer_stacks import LayerStack
from .loading import load_backbone
from .panels import save_figure
from .stacks import PositionStack, find_stacks, pick_stack


def model_parser(
    description: str,
    part: str = "position embedding of several, e.g. 'position1'",
    with_prefix: bool = True,
) -> argparse.ArgumentParser:
    """A parser with the options that say which model and which part of it is meant, and where results go.

    Args:
        description: What the command does.
        part: What ``--part`` names one of.
        with_prefix: Whether there is ``--prefix``. Default True.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('config', help='any config with model.backbone (detector or segmentor)')
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='weights of the whole model or of the backbone; default: initial values',
    )
    parser.add_argument(
        '--format',
        choices=sorted(FORMATS),
        help='of a checkpoint from elsewhere; default: our own names',
    )
    parser.add_argument(
        '--pretrained',
        action='store_true',
        help="without a checkpoint: apply the config's init_cfg",
    )
    parser.add_argument('--seed', type=int, default=0, help='of initial values (default 0)')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, help='override the config, key=value'
    )
    parser.add_argument(
        '--part',
        help=f'one {part}; default: all, a file each',
    )
    if with_prefix:
        parser.add_argument(
            '--prefix',
            action='store_true',
            help='show prefix tokens (class, distillation); default: leave them out',
        )
    parser.add_argument(
        '--out', type=Path, help='folder; default: work_dirs/pictures/<config name>'
    )
    return parser


def add_grid(
    parser: argparse.ArgumentParser, default: str = 'what each embedding was built for'
) -> None:
    """The option ``--grid``."""
    parser.add_argument(
        '--grid',
        type=int,
        nargs=2,
        metavar=('H', 'W'),
        help=f'tokens; default: {default}',
    )


def config_of(options: argparse.Namespace) -> Config:
    """The config with what ``--cfg-options`` overrides."""
    if not Path(options.config).is_file():
        raise FileNotFoundError(f'there is no config {options.config!r}')
    config = Config.fromfile(options.config)
    if options.cfg_options:
        config.merge_from_dict(options.cfg_options)
    return config


def backbone_of(options: argparse.Namespace) -> nn.Module:
    """The backbone with the weights that the options mean."""
    return load_backbone(
        config_of(options), options.checkpoint, options.format, options.pretrained, options.seed
    )


def stacks_of(options: argparse.Namespace) -> list[PositionStack]:
    """The position stacks that the options mean."""
    backbone = backbone_of(options)
    return find_stacks(backbone) if options.part is None else [pick_stack(backbone, options.part)]


def pick_parts(
    backbone: nn.Module, inside: list[LayerStack], part: str | None
) -> tuple[list[PositionStack], list[LayerStack]]:
    """The absolute positions, and those inside the attention, that ``--part`` means.

    Args:
        backbone: The network.
        inside: Its stacks with a position inside the attention.
        part: The name of one of either kind. None: all; of absolute positions, those that are something
            (:class:`~mmlape.position.NoPosition` is shown only where there is nothing else).
    """
    by_name = {stack.name: stack for stack in inside}
    if part in by_name:
        return [], [by_name[part]]
    stacks = find_stacks(backbone)
    if part is not None:
        names = {stack.name: stack for stack in stacks}
        if part not in names:
            raise ValueError(
                f'the position must be one of {sorted([*names, *by_name])}, got {part!r}'
            )
        return [names[part]], []
    there = [stack for stack in stacks if not isinstance(stack.embedding, NoPosition)]
    return (there if inside else stacks), inside


def grid_of(options: argparse.Namespace) -> tuple[int, int] | None:
    """``--grid`` as a pair, or None."""
    return None if options.grid is None else tuple(options.grid)


class Output:
    """The folder that results go to; every file written is named on the screen."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = options.out or Path('work_dirs/pictures', Path(options.config).stem)

    def picture(self, name: str, figure: Figure) -> None:
        """Write ``<folder>/<name>.png``."""
        self._say(save_figure(figure, self._path(name, '.png')))

    def arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Write ``<folder>/<name>.npz``."""
        path = self._path(name, '.npz')
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
        self._say(path)

    def _path(self, name: str, suffix: str) -> Path:
        return self.folder / (name.replace('.', '_') + suffix)

    def _say(self, path: Path) -> None:
        print_log(str(path), logger=None)


def run(main: Callable[[], None]) -> None:
    """Run a command; a user's mistake ends it with one message on stderr and exit status 1, without a traceback."""
    try:
        main()
    except (ValueError, TypeError, KeyError, FileNotFoundError, ConnectionError) as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        sys.exit(f'error: {message}')
