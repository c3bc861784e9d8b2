"""The position embedding itself: tokens by channels, and maps of single channels.

    mmlape picture position_embedding CONFIG [CHECKPOINT] [--channels 0 1 2] [--grid 14 14]

Writes ``embedding_<part>.png``, ``channels_<part>.png`` and ``embedding_<part>.npz`` for every position embedding of
the backbone, and for the tables of positions inside the attention (Gabor channels; the maps of a relative bias, one per
head). See `mmlape docs pictures`.
"""

from mmlape.cli.arguments import at_least
from mmlape.cli.pictures import OWN_GRID, POSITION, Command, pick_parts, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=POSITION, grid=OWN_GRID, prefix=True)
    command.add('--channels', type=at_least(0), nargs='+', help='default: 24, evenly spaced')
    command.add(
        '--table',
        type=at_least(0),
        default=0,
        help='layer, if each has its own embedding (default 0)',
    )
    options, backbone = command.parse(), command.backbone()
    inside = analysis.attention_position_stages(backbone)
    stages, inside = pick_parts(backbone, inside, options.part)
    tables = [analysis.embedding_table(stage, options.grid, options.prefix) for stage in stages]
    for stage in inside:
        tables += analysis.attention_tables(stage, options.grid, options.prefix)
    for table in tables:
        name = f'embedding_{table.stage}'
        if table.columns == 'channel':  # a matrix of few columns (heads) is not worth a picture
            command.write(name, analysis.draw_embedding(table, options.table))
        channels = analysis.draw_channels(table, options.channels, options.table)
        command.write(f'channels_{table.stage}', channels)
        command.write(name, arrays=table.arrays())


if __name__ == '__main__':
    run(main)
