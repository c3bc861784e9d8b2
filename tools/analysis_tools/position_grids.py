"""How a position embedding changes with the grid: the same at several grids, side by side.

    python tools/analysis_tools/position_grids.py CONFIG [CHECKPOINT] [--grids 7x7 14x14 14x28]

Writes ``grids_<part>.png`` and ``.npz`` for every position embedding of the backbone. See docs/pictures.md.
"""

import argparse

from mmlape import analysis
from mmlape.analysis.command import Output, model_parser, run, stages_of


def grid(text: str) -> tuple[int, int]:
    height, _, width = text.partition('x')
    if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f'a grid is <height>x<width>, e.g. 14x28, got {text!r}')
    return int(height), int(width)


def parse_arguments():
    parser = model_parser('Draw a position embedding at several grids.')
    parser.add_argument(
        '--grids',
        type=grid,
        nargs='+',
        help='e.g. 14x14 14x28; default: half of, as, and twice what each was built for',
    )
    parser.add_argument('--channels', type=int, nargs='+', help='default: 4 that are evenly spread')
    parser.add_argument(
        '--table', type=int, default=0, help='where every layer has its own (default 0)'
    )
    return parser.parse_args()


def around(own: tuple[int, int]) -> list[tuple[int, int]]:
    half, double = (tuple(max(int(side * factor), 1) for side in own) for factor in (0.5, 2))
    return [half, own, double]


def main() -> None:
    options = parse_arguments()
    output = Output(options)
    for stage in stages_of(options):
        tables = [
            analysis.embedding_table(stage, size, options.prefix)
            for size in options.grids or around(stage.position.embedding.grid)
        ]
        maps = [
            analysis.correlation_map(
                table.table(options.table),
                analysis.centre_of(table.grid),
                table.grid,
                table.num_prefix,
            )
            for table in tables
        ]
        name = f'grids_{stage.position_name}'
        output.picture(name, analysis.draw_grids(tables, maps, options.channels, options.table))
        arrays = {}
        for table, correlation in zip(tables, maps):
            size = '{}x{}'.format(*table.grid)
            arrays |= {f'tables_{size}': table.tables, f'correlation_{size}': correlation}
        output.arrays(name, arrays)


if __name__ == '__main__':
    run(main)
