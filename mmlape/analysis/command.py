"""What the command lines of ``tools/analysis_tools`` share. What takes time is imported after options are parsed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mmlape import analysis
from mmlape.checkpoints.formats import FORMATS
from mmlape.checks import check_option
from mmlape.launch.arguments import ConfigOptions

from .choices import COMPARED, NORMS

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from mmengine.config import Config
    from torch import Tensor, nn

    from mmlape.backbones import Stage
    from mmlape.layout import Grid

    from .dtn.tokens import NormTokens

LAYERS = "stage of several, e.g. 'block1'"


def model_parser(
    description: str,
    part: str | None = "position embedding of several, e.g. 'position1'",
    with_prefix: bool = True,
) -> argparse.ArgumentParser:
    """A parser with the options that say which model and which part of it is meant, and where results go.

    Args:
        description: What the command does.
        part: What ``--part`` names one of. None: there is no such option.
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
        '--cfg-options', nargs='+', action=ConfigOptions, help='override the config, key=value'
    )
    if part is not None:
        parser.add_argument('--part', help=f'one {part}; default: all, a file each')
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
    from mmengine.config import Config

    from mmlape.overrides import merge_overrides

    return merge_overrides(Config.fromfile(options.config), options.cfg_options)


def backbone_of(options: argparse.Namespace) -> nn.Module:
    """The backbone with the weights that the options mean."""
    return analysis.load_backbone(
        config_of(options), options.checkpoint, options.format, options.pretrained, options.seed
    )


def stages_of(options: argparse.Namespace) -> list[Stage]:
    """The stages with an absolute position that the options mean."""
    return analysis.position_stages(backbone_of(options), options.part)


def pick_parts(
    backbone: nn.Module, inside: list[Stage], part: str | None
) -> tuple[list[Stage], list[Stage]]:
    """The stages with an absolute position, and those with one inside the attention, that ``--part`` means.

    Args:
        backbone: The network.
        inside: Its stages with a position inside the attention.
        part: The name of a position, or of the layers with one inside. None: all; of absolute positions, those that
            are something (:class:`~mmlape.position.NoPosition` is shown only where there is nothing else).
    """
    if not inside:
        return analysis.position_stages(backbone, part), []
    from mmlape.position import NoPosition

    from .stages import position_of

    within = {stage.name: stage for stage in inside}
    stages = {s.position_name: s for s in analysis.find_stages(backbone) if s.position is not None}
    if part is not None:
        check_option('the position', part, [*stages, *within])
        return ([stages[part]], []) if part in stages else ([], [within[part]])
    there = [s for s in stages.values() if not isinstance(position_of(s).embedding, NoPosition)]
    return there, inside


def grid_of(options: argparse.Namespace) -> Grid | None:
    """``--grid`` as a pair, or None."""
    return None if options.grid is None else tuple(options.grid)


def layer_parser(
    description: str, with_prefix: bool = False, layers: str = 'all'
) -> argparse.ArgumentParser:
    """The parser of :func:`model_parser` with ``--layers``.

    Args:
        description: What the command does.
        with_prefix: Whether there is ``--prefix``. Default False.
        layers: What is meant without ``--layers``. Default ``'all'``.
    """
    parser = model_parser(description, LAYERS, with_prefix)
    parser.add_argument('--layers', type=int, nargs='+', help=f'0-based; default: {layers}')
    return parser


def add_images(parser: argparse.ArgumentParser) -> None:
    """The options that say which images are shown to the network, and at what size."""
    parser.add_argument(
        '--images', nargs='+', required=True, help='image files and folders with images'
    )
    parser.add_argument(
        '--max-images', type=int, metavar='N', help='only the first N; default: all'
    )
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        metavar=('HEIGHT', 'WIDTH'),
        help='pixels to resize to; default: images as they are',
    )


def images_of(options: argparse.Namespace) -> tuple[list[Path], Iterator[Tensor]]:
    """Paths of the images that the options mean, and the images, read one after the other."""
    paths = analysis.find_images(options.images, options.max_images)
    size = None if options.size is None else tuple(options.size)
    return paths, analysis.read_images(config_of(options), paths, size)


def norm_parser(
    description: str, with_prefix: bool = False, layers: str = '0'
) -> argparse.ArgumentParser:
    """The parser of commands about tokens before and after a norm.

    Args:
        description: What the command does.
        with_prefix: Whether there is ``--prefix``. Default False.
        layers: What is meant without ``--layers``. Default ``'0'``.
    """
    parser = layer_parser(description, with_prefix, layers)
    add_images(parser)
    parser.add_argument(
        '--norm',
        choices=NORMS,
        default=NORMS[0],
        help='before attention (norm1, default) or before the feed-forward network',
    )
    parser.add_argument(
        '--compare',
        nargs='*',
        choices=COMPARED,
        default=list(COMPARED),
        help='norms with initial weights, on the same tokens; default: those that the layer is not',
    )
    return parser


def tokens_of(options: argparse.Namespace) -> Iterator[tuple[str, list[NormTokens]]]:
    """The name of each image, with the tokens of each layer asked for; one stage after the other."""
    backbone = backbone_of(options)
    stages = analysis.find_stages(backbone, options.part)
    paths, images = images_of(options)
    layers = [0] if options.layers is None else options.layers
    names = names_of(paths)
    for name, image in zip(names, images):
        for stage in stages:
            tokens = analysis.norm_tokens(
                backbone, image, stage, layers, options.norm, options.compare
            )
            yield name, tokens


def array_name(words: str) -> str:
    """``'layer 0 norm1'`` as ``'layer0_norm1'``, ``'LN, initial'`` as ``'LN_initial'``: a name in a file."""
    return words.replace('layer ', 'layer').replace(', ', '_').replace(' ', '_')


def names_of(paths: list[Path]) -> list[str]:
    """File names of images without suffix; numbered where two share one."""
    stems = [path.stem for path in paths]
    return [
        stem if stems.count(stem) == 1 else f'{stem}_{index}' for index, stem in enumerate(stems)
    ]


class Output:
    """The folder that results go to; every file written is named on the screen."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = options.out or Path('work_dirs/pictures', Path(options.config).stem)

    def picture(self, name: str, figure: Figure) -> None:
        """Write ``<folder>/<name>.png``."""
        self._say(analysis.save_figure(figure, self._path(name, '.png')))

    def arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Write ``<folder>/<name>.npz``."""
        path = self._path(name, '.npz')
        path.parent.mkdir(parents=True, exist_ok=True)
        import numpy as np

        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # none is allow_pickle
        self._say(path)

    def _path(self, name: str, suffix: str) -> Path:
        return self.folder / (name.replace('.', '_') + suffix)

    def _say(self, path: Path) -> None:
        from mmengine.logging import print_log

        print_log(str(path), logger=None)


def run(main: Callable[[], None]) -> None:
    """Run a command; a user's mistake ends it with one message on stderr and exit status 1, without a traceback."""
    try:
        main()
    except (ValueError, TypeError, KeyError, FileNotFoundError, ConnectionError) as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        sys.exit(f'error: {message}')
