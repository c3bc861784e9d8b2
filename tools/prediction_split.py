"""Images on which position helps or hurts a classifier, from two tests (Gabor position encoding, Table 2).

    mmlape prediction_split WITHOUT.pkl WITH.pkl [--out split.json]

The files are written by ``mmlape test CONFIG CHECKPOINT --out FILE.pkl`` for the network without position and the
one with it, on the same images. See `mmlape docs pictures`.
"""

import argparse
import json
import sys
from pathlib import Path

from mmlape.atomic import atomic_write
from mmlape.cli.arguments import FILE, NEW_FILE, Parser, checked
from mmlape.cli.pictures import run
from mmlape.research import analysis


def _predictions(text: str) -> Path:
    if Path(text).suffix not in ('.pkl', '.pickle', '.json'):
        raise ValueError(f'{text!r} must end with .pkl or .json')
    return FILE(text)


PREDICTIONS = checked(_predictions)


def parse_arguments() -> argparse.Namespace:
    parser = Parser(
        'prediction_split', 'Count images on which position helps or hurts a classifier.',
        'without.pkl with.pkl', 'without.pkl with.pkl --out split.json',
    )  # fmt: skip
    parser.add_argument(
        'without', type=PREDICTIONS, help='predictions without position: .pkl of a test, or .json'
    )
    parser.add_argument(
        'with_position', type=PREDICTIONS, help='predictions with position, of the same images'
    )
    parser.add_argument('--out', type=NEW_FILE, help='JSON with the images of each kind')
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    first, second = (analysis.read_predictions(p) for p in (options.without, options.with_position))
    split = analysis.split_predictions(first, second)
    counts, total = {kind: len(images) for kind, images in split.items()}, len(first.names)
    lines = [f'{total} images     with: right       with: wrong']
    for label, pair in (
        ('without: right', ('ignored', 'mislead')),
        ('without: wrong', ('correct', 'useless')),
    ):
        cells = (f'{kind} {counts[kind]} ({counts[kind] / total:.1%})' for kind in pair)
        lines.append('  '.join([label, *(cell.ljust(22) for cell in cells)]).rstrip())
    sys.stdout.write('\n'.join(lines) + '\n')
    if options.out is not None:
        images = {kind: [first.names[i] for i in split[kind]] for kind in split}
        found = dict(counts=counts, images=images)
        atomic_write(options.out, json.dumps(found, indent=1).encode())


if __name__ == '__main__':
    run(main)
