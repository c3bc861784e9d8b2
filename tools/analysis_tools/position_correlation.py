"""Position correlation per layer (LaPE, ICCV 2023, eq. 12), from a config and, optionally, a checkpoint.

    python tools/analysis_tools/position_correlation.py CONFIG [CHECKPOINT] [--token 7 7] [--grid 14 14]

Writes ``correlation_<part>.png`` and ``.npz`` for every position embedding of the backbone, and ``scores_<part>`` for
what a position inside the attention (relative bias, Gabor channels) adds to the scores. See docs/pictures.md.
"""

from mmlape import analysis
from mmlape.analysis.choices import SOURCES
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
        '--where',
        choices=(*SOURCES, 'scores'),
        help='for position in several places: added before the attention, in the stream, or to scores; default: each',
    )
    parser.add_argument('--head', type=int, help='of the scores; default: the mean of all')
    options = parser.parse_args()
    if options.token is not None:
        single = len(options.token) == 1
        options.token = options.token[0] if single else tuple(options.token)
    return options


def draw_stage(output, options, stage) -> None:
    grid = grid_of(options)
    sources = analysis.plan_sources(analysis.position_plan(stage, grid))
    for source in [options.where] if options.where else sources:
        found = analysis.position_correlations(
            stage, grid, options.token, options.prefix, source, options.layers
        )
        name = f'correlation_{stage.position_name}' + (f'_{source}' if len(sources) > 1 else '')
        output.picture(name, analysis.draw_correlations(found))
        output.arrays(name, found.arrays())


def draw_attention(output, options, stage) -> None:
    grids = analysis.position_scores(
        stage, grid_of(options), options.token, options.prefix, options.layers, options.head
    )
    for found in grids:
        size = '_{}x{}'.format(*found.grid) if len(grids) > 1 else ''
        name = f'scores_{stage.name}{size}'
        output.picture(name, analysis.draw_scores(found))
        output.arrays(name, found.arrays())


def main() -> None:
    options = parse_arguments()
    output, backbone = Output(options), backbone_of(options)
    inside = analysis.attention_position_stages(backbone, with_scores=True)
    stages, inside = pick_parts(backbone, inside, options.part)
    if options.head is not None and not inside:
        raise ValueError("--head: no position here adds to the attention's scores")
    if options.where == 'scores' and not inside:
        raise ValueError("--where scores: no position here adds to the attention's scores")
    if options.where in SOURCES and not stages:
        raise ValueError(f'--where {options.where}: {options.part!r} has scores only')
    for stage in stages if options.where != 'scores' else []:
        draw_stage(output, options, stage)
    for stage in inside if options.where in (None, 'scores') else []:
        draw_attention(output, options, stage)


if __name__ == '__main__':
    run(main)
