"""Position correlation per layer (LaPE, ICCV 2023, eq. 12), from a config and, optionally, a checkpoint.

    mmlape picture position_correlation CONFIG [CHECKPOINT] [--token 7 7] [--grid 14 14]

Writes ``correlation_<part>.png`` and ``.npz`` for every position embedding of the backbone, and ``scores_<part>`` for
what a position inside the attention (relative bias, Gabor channels) adds to the scores. See `mmlape docs pictures`.
"""

from mmlape.cli.arguments import at_least
from mmlape.cli.pictures import OWN_GRID, POSITION, Command, pick_parts, run
from mmlape.research import analysis


def arguments() -> Command:
    command = Command(__doc__, part=POSITION, layers='all', grid=OWN_GRID, prefix=True)
    token = 'row and column of a cell, or the index of a prefix token; default: the centre'
    command.add('--token', type=at_least(0), nargs='+', help=token)
    where = 'which of several positions: before the attention, in the stream, or in the scores; default: all'
    command.add('--where', choices=(*analysis.SOURCES, 'scores'), help=where)
    command.add(
        '--head', type=at_least(0), help='head of the scores; default: the mean of all heads'
    )
    return command


def draw_stage(command: Command, stage) -> None:
    options = command.options
    sources = analysis.plan_sources(analysis.position_plan(stage, options.grid))
    for source in [options.where] if options.where else sources:
        found = analysis.position_correlations(
            stage, options.grid, options.token, options.prefix, source, options.layers
        )
        name = f'correlation_{stage.position_name}' + (f'_{source}' if len(sources) > 1 else '')
        command.write(name, analysis.draw_correlations(found), found.arrays())


def draw_attention(command: Command, stage) -> None:
    options = command.options
    grids = analysis.position_scores(
        stage, options.grid, options.token, options.prefix, options.layers, options.head
    )
    for found in grids:
        size = '_{}x{}'.format(*found.grid) if len(grids) > 1 else ''
        command.write(f'scores_{stage.name}{size}', analysis.draw_scores(found), found.arrays())


def main() -> None:
    command = arguments()
    options = command.parse()
    if options.token is not None and len(options.token) == 1:
        (options.token,) = options.token
    backbone = command.backbone()
    inside = analysis.attention_position_stages(backbone, with_scores=True)
    stages, inside = pick_parts(backbone, inside, options.part)
    if (options.head is not None or options.where == 'scores') and not inside:
        raise ValueError("--head, --where scores: no position here adds to the attention's scores")
    if options.where in analysis.SOURCES and not stages:
        raise ValueError(f'--where {options.where}: {options.part!r} has scores only')
    for stage in stages if options.where != 'scores' else []:
        draw_stage(command, stage)
    for stage in inside if options.where in (None, 'scores') else []:
        draw_attention(command, stage)


if __name__ == '__main__':
    run(main)
