"""Where a token takes its statistics from: DTN's maps P_h before and after training (DTN, ICLR 2022, Figures 6 and 7).

    mmlape picture dtn_maps CONFIG [CHECKPOINT] [--token 7 7] [--grid 14 14]

Writes ``dtn_maps_<part>.png`` and ``.npz`` for every stage with DTN. See `mmlape docs pictures`.
"""

from mmlape.cli.arguments import at_least
from mmlape.cli.pictures import STAGE, Command, overridden_config, run
from mmlape.research import analysis


def arguments() -> Command:
    own = 'that of the position embedding, else 14 14'
    command = Command(__doc__, part=STAGE, layers='all with DTN', grid=own)
    command.add('--token', type=at_least(0), nargs=2, help='row and column; default: the centre')
    command.add('--norm', choices=analysis.NORMS, help='default: both of a layer')
    command.add('--before', help='compare CHECKPOINT with this one; default: initial values')
    return command


def states_of(command: Command) -> dict:
    """Backbones by the label of their maps."""
    options = command.options
    if options.checkpoint is None:
        if options.before is not None:
            raise ValueError(f'--before {options.before} is compared with a CHECKPOINT, give one')
        return {'now': command.backbone()}
    form = options.format if options.before else None
    before = analysis.load_backbone(
        overridden_config(options), options.before, form, seed=options.seed
    )
    return {'before': before, 'after': command.backbone()}


def main() -> None:
    command = arguments()
    options = command.parse()
    backbones = states_of(command)
    norms = analysis.NORMS if options.norm is None else (options.norm,)
    stages = [analysis.dtn_stages(backbone, options.part) for backbone in backbones.values()]
    for same_stage in zip(*stages):
        states = {
            state: analysis.dtn_maps(stage, options.grid, options.token, options.layers, norms)
            for state, stage in zip(backbones, same_stage)
        }
        arrays = {}
        for state, maps in states.items():
            arrays |= maps.arrays(f'_{state}' if len(states) > 1 else '')
        figure = analysis.draw_dtn_maps(states)
        command.write(f'dtn_maps_{same_stage[0].name}', figure, arrays)


if __name__ == '__main__':
    run(main)
