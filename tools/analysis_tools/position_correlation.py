"""Position correlation per layer (LaPE, ICCV 2023, eq. 12), from a config and, optionally, a checkpoint.

    python tools/analysis_tools/position_correlation.py CONFIG [CHECKPOINT] [--token 7 7] [--grid 14 14]

Writes ``correlation_<part>.png`` and ``.npz`` for every position embedding of the backbone. See docs/pictures.md.
"""

from mmlape.analysis import draw_correlations, plan_sources, position_correlations, position_plan
from mmlape.analysis.command import Output, add_grid, grid_of, model_parser, run, stacks_of
from mmlape.analysis.correlation import SOURCES


def parse_arguments():
    parser = model_parser('Draw how alike the positions of tokens look to each layer.')
    add_grid(parser)
    parser.add_argument(
        '--token',
        type=int,
        nargs='+',
        help='row and column of a cell, or the index of a prefix token; default: the centre',
    )
    parser.add_argument('--layers', type=int, nargs='+', help='0-based; default: all')
    parser.add_argument(
        '--where', choices=SOURCES, help='for a joining with position in both places; default: each'
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output, grid, token = Output(options), grid_of(options), options.token
    if token is not None:
        token = token[0] if len(token) == 1 else tuple(token)
    for stack in stacks_of(options):
        sources = plan_sources(position_plan(stack, grid))
        for source in [options.where] if options.where else sources:
            found = position_correlations(
                stack, grid, token, options.prefix, source, options.layers
            )
            name = f'correlation_{stack.name}' + (f'_{source}' if len(sources) > 1 else '')
            output.picture(name, draw_correlations(found))
            output.arrays(name, found.arrays())


if __name__ == '__main__':
    run(main)
