"""The position embedding itself: tokens by channels, and maps of single channels.

    python tools/analysis_tools/position_embedding.py CONFIG [CHECKPOINT] [--channels 0 1 2] [--grid 14 14]

Writes ``embedding_<part>.png``, ``channels_<part>.png`` and ``embedding_<part>.npz`` for every position embedding of
the backbone. See docs/pictures.md.
"""

from mmlape.analysis import draw_channels, draw_embedding, embedding_table
from mmlape.analysis.command import Output, add_grid, grid_of, model_parser, run, stacks_of


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
    output = Output(options)
    for stack in stacks_of(options):
        table = embedding_table(stack, grid_of(options), options.prefix)
        output.picture(f'embedding_{stack.name}', draw_embedding(table, options.table))
        output.picture(
            f'channels_{stack.name}', draw_channels(table, options.channels, options.table)
        )
        output.arrays(f'embedding_{stack.name}', table.arrays())


if __name__ == '__main__':
    run(main)
