"""The frame of a command: its options, the model and images that they name, and the folder that results go to.

Whatever takes time is imported after the options are parsed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mmlape.checkpoints.formats import FORMATS
from mmlape.checks import check_option
from mmlape.research import analysis
from mmlape.research.analysis import COMPARED, NORMS
from mmlape.shipped import read_config

from .arguments import (
    CHECKPOINT,
    CONFIG,
    IMAGE_SOURCE,
    NEW_FOLDER,
    SEED,
    ConfigOptions,
    Parser,
    at_least,
)
from .program import run_program, stop_with_message

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from mmengine.config import Config
    from torch import Tensor, nn

    from mmlape.backbones import Stage
    from mmlape.research.analysis.dtn import NormTokens

# Descriptions of the values of ``--part``.
POSITION = "position embedding of several, e.g. 'position1'"
STAGE = "stage of several, e.g. 'block1'"
OWN_GRID = 'what each embedding was built for'


class Command:
    """A command that takes a config and a checkpoint. Its options are there after :meth:`parse`, in ``options``; those
    of its own are added by ``add``, as for ``ArgumentParser.add_argument``.

    Args:
        docstring: Of the command's module. Its first line is the description.
        part: What ``--part`` names one of. Default None: there is no such option.
        layers: What is meant without ``--layers``. Default None: there is no such option.
        grid: What is meant without ``--grid``. Default None: there is no such option.
        prefix: Whether there is ``--prefix``. Default False.
        images: Whether it shows images to the network. Default False.
        norms: Whether it is about tokens before and after a norm. Default False."""

    options: argparse.Namespace

    def __init__(
        self,
        docstring: str,
        *,
        part: str | None = None,
        layers: str | None = None,
        grid: str | None = None,
        prefix: bool = False,
        images: bool = False,
        norms: bool = False,
    ) -> None:
        name, shown = Path(sys.argv[0]).stem, ' --images photos' if images else ''
        examples = f'my_config.py{shown}', f'my_config.py epoch_12.pth{shown} --out pictures'
        self.parser = Parser(f'picture {name}', docstring.split('\n')[0], *examples)
        self.add = add = self.parser.add_argument
        add(
            'config',
            type=CONFIG,
            help='any config with model.backbone (detector or segmentor)',
        )
        weights = 'weights of the whole model or of the backbone; default: initial values'
        add('checkpoint', type=CHECKPOINT, nargs='?', help=weights)
        of = 'of a checkpoint from elsewhere; default: our own names'
        add('--format', choices=sorted(FORMATS), help=of)
        without = "without a checkpoint: apply the config's init_cfg"
        add('--pretrained', action='store_true', help=without)
        add('--seed', type=SEED, default=0, help='of initial values (default 0)')
        override = 'override the config, key=value'
        add('--cfg-options', nargs='+', action=ConfigOptions, help=override)
        where = 'folder; default: work_dirs/pictures/<config name>, with what --cfg-options change'
        add('--out', type=NEW_FOLDER, help=where)
        if part:
            add('--part', help=f'one {part}; default: all, a file each')
        if layers:
            add('--layers', type=at_least(0), nargs='+', help=f'0-based; default: {layers}')
        if grid:
            add(
                '--grid',
                type=at_least(1),
                nargs=2,
                metavar=('H', 'W'),
                help=f'tokens; default: {grid}',
            )
        if prefix:
            shown = 'show prefix tokens (class, distillation); default: leave them out'
            add('--prefix', action='store_true', help=shown)
        if images:
            add(
                '--images',
                type=IMAGE_SOURCE,
                nargs='+',
                required=True,
                help='image files and folders with images',
            )
            add(
                '--max-images', type=at_least(1), metavar='N', help='only the first N; default: all'
            )
            pixels = 'pixels to resize to; default: images as they are'
            add('--size', type=at_least(1), nargs=2, metavar=('HEIGHT', 'WIDTH'), help=pixels)
        if norms:
            norm = 'before attention (norm1, default) or before the feed-forward network'
            add('--norm', choices=NORMS, default=NORMS[0], help=norm)
            same = 'norms with initial weights, on the same tokens; default: those that the layer is not'
            add('--compare', nargs='*', choices=COMPARED, default=list(COMPARED), help=same)

    def parse(self) -> argparse.Namespace:
        """The options; ``--grid`` is a pair or None."""
        self.options = given = self.parser.parse_args()
        if given.pretrained and given.checkpoint:
            self.parser.error('--pretrained goes without a checkpoint')
        if given.format and not given.checkpoint:
            self.parser.error('--format goes with a checkpoint')
        if getattr(self.options, 'grid', None) is not None:
            self.options.grid = tuple(self.options.grid)
        return self.options

    def backbone(self) -> nn.Module:
        """The backbone of the config with the weights that the options name."""
        given = self.options
        return analysis.load_backbone(
            overridden_config(given), given.checkpoint, given.format, given.pretrained, given.seed
        )

    def images(self) -> Iterator[tuple[str, Tensor]]:
        """Name and pixels of each image that the options name; names are numbered where two files share one."""
        given = self.options
        paths = analysis.find_images(given.images, given.max_images)
        stems = [path.stem for path in paths]
        pixels = analysis.read_images(
            overridden_config(given), paths, given.size and tuple(given.size)
        )
        for index, (stem, image) in enumerate(zip(stems, pixels)):
            yield stem if stems.count(stem) == 1 else f'{stem}_{index}', image

    def tokens(self) -> Iterator[tuple[str, list[NormTokens]]]:
        """The name of each image, with the tokens of each layer asked for; one stage after the other."""
        given, backbone = self.options, self.backbone()
        stages = analysis.find_stages(backbone, given.part)
        asked = given.layers or [0], given.norm, given.compare
        for name, image in self.images():
            for stage in stages:
                yield name, analysis.norm_tokens(backbone, image, stage, *asked)

    def write(
        self, name: str, figure: Figure | None = None, arrays: dict[str, np.ndarray] | None = None
    ) -> None:
        """Write ``<name>.png`` and ``<name>.npz`` to the folder of the results, and print where they are."""
        given = self.options
        # A variant of a config has a folder of its own: 'deit-t_8xb128_in1k,type=mmlape.LaPE'.
        changes = [f'{k.rpartition(".")[2]}={v}' for k, v in (given.cfg_options or {}).items()]
        words = re.sub(r'[^\w.,=-]+', '-', ','.join([Path(given.config).stem, *changes]))
        folder = given.out or Path('work_dirs/pictures', words[:200])
        write_results(folder, name, figure, arrays)


def write_results(
    folder: Path, name: str, figure: Figure | None, arrays: dict[str, np.ndarray] | None
) -> None:
    """Write ``<folder>/<name>.png`` and ``.npz``, those that are given, and print where they are."""
    import numpy as np
    from mmengine.logging import print_log

    from mmlape.apps.report import save_figure

    path = folder / name.replace('.', '_')
    if figure is not None:
        print_log(str(save_figure(figure, path.with_suffix('.png'))), logger=None)
    if arrays is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path.with_suffix('.npz'), **arrays)  # type: ignore[arg-type]  # none is allow_pickle
        print_log(str(path.with_suffix('.npz')), logger=None)


def overridden_config(options: argparse.Namespace) -> Config:
    """The config with what ``--cfg-options`` overrides."""
    from .options import merge_overrides

    return merge_overrides(read_config(options.config), options.cfg_options)


def pick_parts(
    backbone: nn.Module, inside: list[Stage], part: str | None
) -> tuple[list[Stage], list[Stage]]:
    """The stages with an absolute position, and those with one inside the attention, that ``--part`` names.

    Args:
        inside: Its stages with a position inside the attention.
        part: The name of a position, or of the layers with one inside. None: all; absolute positions other than
            :class:`~mmlape.position.NoPosition`, which is shown only where there is nothing else."""
    if not inside:
        return analysis.position_stages(backbone, part), []
    from mmlape.position import NoPosition

    within = {stage.name: stage for stage in inside}
    stages = {s.position_name: s for s in analysis.find_stages(backbone) if s.position is not None}
    if part is not None:
        check_option('the position', part, [*stages, *within])
        return ([stages[part]], []) if part in stages else ([], [within[part]])
    return [s for s in stages.values() if not isinstance(s.position.embedding, NoPosition)], inside


def array_name(words: str) -> str:
    """``'layer 0 norm1'`` as ``'layer0_norm1'``, ``'LN, initial'`` as ``'LN_initial'``: a name in a file."""
    return words.replace('layer ', 'layer').replace(', ', '_').replace(' ', '_')


def run(main: Callable[[], None]) -> None:
    """Run a command; a user's mistake ends it with one line."""

    def reported() -> None:
        with stop_with_message(KeyError):
            main()

    run_program(reported)
