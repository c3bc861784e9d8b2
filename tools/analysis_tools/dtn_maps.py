"""Where a token takes its statistics from: DTN's maps P_h before and after training (DTN, ICLR 2022, Figures 6 and 7).

    python tools/analysis_tools/dtn_maps.py CONFIG [CHECKPOINT] [--token 7 7] [--grid 14 14]

Writes ``dtn_maps_<part>.png`` and ``.npz`` for every stage with DTN. See docs/pictures_dtn.md.
"""

from mmlape import analysis
from mmlape.analysis.choices import NORMS
from mmlape.analysis.command import (
    Output,
    add_grid,
    backbone_of,
    config_of,
    grid_of,
    layer_parser,
    run,
)


def parse_arguments():
    parser = layer_parser("Draw DTN's positional maps.", layers='all with DTN')
    add_grid(parser, 'that of the position embedding beside the layers, else 14 14')
    parser.add_argument('--token', type=int, nargs=2, help='row and column; default: the centre')
    parser.add_argument('--norm', choices=NORMS, help='default: both of a layer')
    parser.add_argument(
        '--before', help='checkpoint to compare CHECKPOINT with; default: initial values'
    )
    return parser.parse_args()


def states_of(options) -> dict:
    """Backbones by what is written beside their maps."""
    if options.checkpoint is None:
        if options.before is not None:
            raise ValueError(f'--before {options.before} is compared with a CHECKPOINT, give one')
        return {'now': backbone_of(options)}
    checkpoint, options.checkpoint = options.checkpoint, options.before
    config, form = config_of(options), options.format if options.before else None
    before = analysis.load_backbone(config, options.before, form, seed=options.seed)
    options.checkpoint = checkpoint
    return {'before': before, 'after': backbone_of(options)}


def main() -> None:
    options = parse_arguments()
    output, backbones = Output(options), states_of(options)
    norms = NORMS if options.norm is None else (options.norm,)
    stages = [analysis.dtn_stages(backbone, options.part) for backbone in backbones.values()]
    for same_stage in zip(*stages):
        states = {
            state: analysis.dtn_maps(stage, grid_of(options), options.token, options.layers, norms)
            for state, stage in zip(backbones, same_stage)
        }
        name = f'dtn_maps_{same_stage[0].name}'
        output.picture(name, analysis.draw_dtn_maps(states))
        arrays = {}
        for state, maps in states.items():
            arrays |= maps.arrays(f'_{state}' if len(states) > 1 else '')
        output.arrays(name, arrays)


if __name__ == '__main__':
    run(main)
