"""The position embedding itself: tokens by channels, and maps of single channels.

    python tools/analysis_tools/position_embedding.py CONFIG [CHECKPOINT] [--channels 0 1 2] [--grid 14 14]

Writes ``embedding_<part>.png``, ``channels_<part>.png`` and ``embedding_<part>.npz`` for every position embedding of
the backbone, and for the tables of positions inside the attention (Gabor channels; the maps of a relative bias, one per
head). See docs/pictures.md.
"""

from mmlape import analysis
from mmlape.analysis.command import (
    Output,
    add_grid,
    backbone_of,
    grid_of,
    model_parser,
    pick_parts,
    run,
)


def parse_arguments():
    parser = model_parser('Draw a position embedding.')
    add_grid(parser)
    parser.add_argument(
        '--channels', type=int, nargs='+', help='default: 24 that are evenly spread'
    )
    parser.add_argument(
        '--table', type=int, default=0, help='where every layer has its own (default 0)'
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output, backbone, grid = Output(options), backbone_of(options), grid_of(options)
    stages, inside = pick_parts(
        backbone, analysis.attention_position_stages(backbone), options.part
    )
    tables = [analysis.embedding_table(stage, grid, options.prefix) for stage in stages]
    for stage in inside:
        tables += analysis.attention_tables(stage, grid, options.prefix)
    for table in tables:
        if table.columns == 'channel':  # a matrix of few columns, as of heads, shows nothing
            output.picture(
                f'embedding_{table.stage}', analysis.draw_embedding(table, options.table)
            )
        output.picture(
            f'channels_{table.stage}',
            analysis.draw_channels(table, options.channels, options.table),
        )
        output.arrays(f'embedding_{table.stage}', table.arrays())


if __name__ == '__main__':
    run(main)
