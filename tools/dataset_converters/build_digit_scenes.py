"""Build the digit scenes: a small detection, instance and semantic segmentation data set; nothing is downloaded.

Example: python tools/dataset_converters/build_digit_scenes.py data/digit_scenes --num-train 5000
"""

import argparse
import inspect
import sys

from mmlape.datasets import build_digit_scenes


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Every option of ``build_digit_scenes``, with its default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', nargs='?', default='data/digit_scenes', help='the folder to build')
    for name, parameter in inspect.signature(build_digit_scenes).parameters.items():
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


def main(arguments: list[str] | None = None) -> int:
    options = vars(parse_arguments(arguments))
    try:
        build_digit_scenes(options.pop('root'), **options)
    except (ValueError, FileExistsError, ModuleNotFoundError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
