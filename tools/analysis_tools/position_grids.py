"""How a position embedding changes with the grid: the same at several grids, side by side.

    mmlape picture position_grids CONFIG [CHECKPOINT] [--grids 7x7 14x14 14x28]

Writes ``grids_<part>.png`` and ``.npz`` for every position embedding of the backbone. See `mmlape docs pictures`.
"""

import argparse

from mmlape.cli.arguments import at_least
from mmlape.cli.pictures import POSITION, Command, run
from mmlape.research import analysis


def grid(text: str) -> tuple[int, int]:
    height, _, width = text.partition('x')
    if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f'a grid is <height>x<width>, e.g. 14x28, got {text!r}')
    return int(height), int(width)


def around(own: tuple[int, int]) -> list[tuple[int, int]]:
    half, double = (tuple(max(int(side * factor), 1) for side in own) for factor in (0.5, 2))
    return [half, own, double]


def main() -> None:
    command = Command(__doc__, part=POSITION, prefix=True)
    grids = 'e.g. 14x14 14x28; default: half, the same and twice the grid of each embedding'
    command.add('--grids', type=grid, nargs='+', help=grids)
    command.add('--channels', type=at_least(0), nargs='+', help='default: 4, evenly spaced')
    command.add(
        '--table',
        type=at_least(0),
        default=0,
        help='layer, if each has its own embedding (default 0)',
    )
    options = command.parse()
    for stage in analysis.position_stages(command.backbone(), options.part):
        sizes = options.grids or around(stage.position.embedding.grid)
        tables = [analysis.embedding_table(stage, size, options.prefix) for size in sizes]
        maps, arrays = [], {}
        for table in tables:
            rows, centre = table.table(options.table), analysis.centre_of(table.grid)
            chosen = analysis.token_row(centre, table.grid, table.num_prefix)
            cosines = analysis.cosine_matrix(rows[[chosen]], rows[table.num_prefix :])
            maps.append(cosines.reshape(table.grid))
            size = '{}x{}'.format(*table.grid)
            arrays |= {f'tables_{size}': table.tables, f'correlation_{size}': maps[-1]}
        figure = analysis.draw_grids(tables, maps, options.channels, options.table)
        command.write(f'grids_{stage.position_name}', figure, arrays)


if __name__ == '__main__':
    run(main)
