"""Fit a Gabor position to the learned table of a checkpoint, without images (Gabor position encoding, section 3).

    mmlape fit_gabor CHECKPOINT OUT.pth [--variant G+E] [--report FOLDER]

OUT.pth holds the weights of CHECKPOINT with Gabor parameters instead of the table: it is loaded by the same config
with ``position=dict(type='mmlape.GaborPosition')``. Prints the quality of the fit and the kinds of
channels of each table. See `mmlape docs pictures`.
"""

from __future__ import annotations

from pathlib import Path

from mmlape.cli.arguments import CHECKPOINT, NEW_CHECKPOINT, NEW_FOLDER, Parser, at_least
from mmlape.cli.pictures import run
from mmlape.research import analysis
from mmlape.research.analysis import VARIANTS


def parse_arguments():
    parser = Parser(
        'fit_gabor', 'Fit a Gabor position to a learned table.', 'deit.pth gabor.pth',
        'deit.pth gabor.pth --variant G --report pictures',
    )  # fmt: skip
    parser.add_argument(
        'checkpoint', type=CHECKPOINT, help='of a whole model or a backbone: ours, timm or DeiT'
    )
    parser.add_argument('out', type=NEW_CHECKPOINT, help='checkpoint to write')
    parser.add_argument('--key', help='name of one table; default: every pos_embed there is')
    parser.add_argument(
        '--grid',
        type=at_least(1),
        nargs=2,
        metavar=('H', 'W'),
        help='grid of the table, if it is not square',
    )
    parser.add_argument('--variant', choices=list(VARIANTS), default='G+E')
    parser.add_argument(
        '--report', type=NEW_FOLDER, help='folder for a picture and figures per channel'
    )
    return parser.parse_args()


def noise_r2(maps, variant: str) -> float:
    """R^2 of the fit on noise of the same size: the floor."""
    import numpy as np

    noise = np.random.default_rng(0).standard_normal((64, *maps.shape[1:]))
    return float(np.median(analysis.fit_maps(noise, variant).r2))


def describe(name: str, maps, fit, kinds) -> None:
    import numpy as np

    from mmlape.research.analysis.gabor import MIN_SIDE

    quantiles = ', '.join(f'{value:.3f}' for value in np.quantile(fit.r2, [0.1, 0.5, 0.9]))
    print(f'{name}: {len(maps)} channels on {maps.shape[1]} x {maps.shape[2]}, {fit.variant}')
    print(f'  R2 of all values {fit.total_r2:.3f}; of a channel, 10 / 50 / 90 %: {quantiles}')
    print(f'  at most reachable, median channel: {np.median(fit.ceiling):.3f}', end='')
    print(f'; on noise of that size: {noise_r2(maps, fit.variant):.3f}')
    if kinds is None:
        print(f'  kinds: not told apart on grids with a side under {MIN_SIDE}')
        return
    for kind, count in kinds.counts().items():
        r2 = f'median R2 {np.median(fit.r2[kinds.kinds == kind]):.3f}' if count else ''
        print(f'  {kind:8}{count:5}  {r2}')


def report(folder: Path, name: str, maps, fit, kinds) -> None:
    import numpy as np

    from mmlape.apps.report import save_figure

    path = save_figure(analysis.draw_gabor_fit(maps, fit, kinds), folder / f'gabor_{name}.png')
    arrays = dict(maps=maps, fitted=fit.maps, r2=fit.r2, ceiling=fit.ceiling)
    np.savez_compressed(
        path.with_suffix('.npz'), **arrays, **({} if kinds is None else kinds._asdict())
    )
    print(f'  {path}\n  {path.with_suffix(".npz")}')


def main() -> None:
    options = parse_arguments()
    from mmlape.checkpoints.conversion import tensors_of
    from mmlape.checkpoints.files import write_checkpoint
    from mmlape.checkpoints.matching import find_tables, replace_table, table_grid
    from mmlape.checkpoints.reading import read_checkpoint
    from mmlape.research.analysis.gabor import MIN_SIDE

    state = tensors_of(read_checkpoint(options.checkpoint))
    tables = find_tables(state)
    if options.key is not None:
        if options.key not in tables:
            raise ValueError(f'--key must be one of {sorted(tables)}, got {options.key!r}')
        tables = {options.key: tables[options.key]}
    if options.grid and len(tables) > 1:
        raise ValueError(f'--grid needs --key, because there are several tables: {sorted(tables)}')
    grid = tuple(options.grid) if options.grid else None
    for name, table in tables.items():
        num_prefix, size = table_grid(table.shape[1], grid)
        position, fits = analysis.fit_gabor_position(table, size, num_prefix, options.variant)
        state = replace_table(state, name, position.state_dict())
        for index, fit in enumerate(fits):
            maps = table[index, num_prefix:].float().T.reshape(-1, *size).numpy()
            kinds = analysis.classify_channels(maps) if min(size) >= MIN_SIDE else None
            label = name if len(fits) == 1 else f'{name}[{index}]'
            describe(label, maps, fit, kinds)
            if options.report:
                report(options.report, label.replace('.', '_'), maps, fit, kinds)
    write_checkpoint(options.out, state)
    print(f'{options.out}: load it with position=dict(type="mmlape.GaborPosition"', end='')
    print(')' if options.variant == 'G+E' else f', variant="{options.variant}")')


if __name__ == '__main__':
    run(main)
