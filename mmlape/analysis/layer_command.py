"""What the command lines about layers and their tokens share, beyond :mod:`mmlape.analysis.command`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from .command import backbone_of, config_of, model_parser
from .images import find_images, read_images
from .layer_stacks import NORMS, find_layer_stacks
from .normed_tokens import COMPARED, NormTokens, norm_tokens

PART = "stack of layers of several, e.g. 'block1'"


def layer_parser(
    description: str, with_prefix: bool = False, layers: str = 'all'
) -> argparse.ArgumentParser:
    """The parser of :func:`~mmlape.analysis.command.model_parser` with ``--layers``.

    Args:
        description: What the command does.
        with_prefix: Whether there is ``--prefix``. Default False.
        layers: What is meant without ``--layers``. Default ``'all'``.
    """
    parser = model_parser(description, PART, with_prefix)
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
    paths = find_images(options.images, options.max_images)
    size = None if options.size is None else tuple(options.size)
    return paths, read_images(config_of(options), paths, size)


def norm_parser(description: str, with_prefix: bool = False) -> argparse.ArgumentParser:
    """The parser of commands about tokens before and after a norm.

    Args:
        description: What the command does.
        with_prefix: Whether there is ``--prefix``. Default False.
    """
    parser = layer_parser(description, with_prefix, layers='0')
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
    """The name of each image, with the tokens of each layer asked for; a stack of layers after the other."""
    backbone = backbone_of(options)
    stacks = find_layer_stacks(backbone, options.part)
    paths, images = images_of(options)
    layers = [0] if options.layers is None else options.layers
    names = _names_of(paths)
    for name, image in zip(names, images):
        for stack in stacks:
            yield name, norm_tokens(backbone, image, stack, layers, options.norm, options.compare)


def array_name(words: str) -> str:
    """``'layer 0 norm1'`` as ``'layer0_norm1'``, ``'LN, initial'`` as ``'LN_initial'``: a name in a file."""
    return words.replace('layer ', 'layer').replace(', ', '_').replace(' ', '_')


def _names_of(paths: list[Path]) -> list[str]:
    """File names without suffix; numbered where two images share one."""
    stems = [path.stem for path in paths]
    return [
        stem if stems.count(stem) == 1 else f'{stem}_{index}' for index, stem in enumerate(stems)
    ]
