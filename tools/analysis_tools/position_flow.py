"""Where position is in queries, keys, values and layer outputs (Gabor position encoding, Figures 8 to 10).

    mmlape picture position_flow CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--layer 0]

Writes ``flow_<part>_<image>`` (Figure 8), ``flow_alone_<part>_<image>`` (Figure 9), ``flow_layers_<part>_<image>``
(Figure 10), ``flow_sum_<part>_<image>`` (tokens, position and their sum as matrices), as PNG, and their arrays. See
`mmlape docs pictures`.
"""

from mmlape.cli.arguments import at_least
from mmlape.cli.pictures import POSITION, Command, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=POSITION, images=True)
    command.add('--layer', type=at_least(0), default=0, help='0-based (default 0)')
    channels = 'of Figures 9 and 10; default: those with the strongest and weakest position'
    command.add('--channels', type=at_least(0), nargs='+', help=channels)
    count = 'channels of each kind in Figure 8 (default 3)'
    command.add('--count', type=at_least(1), default=3, help=count)
    options = command.parse()
    backbone = command.backbone()
    initial = options.checkpoint is None and not options.pretrained
    note = 'initial values' if initial else ''
    for image, pixels in command.images():
        for stage in analysis.position_stages(backbone, options.part):
            flow = analysis.position_flow(backbone, pixels, stage, options.layer)
            name, chosen = f'{stage.position_name}_{image}', (flow, options.channels)
            command.write(f'flow_{name}', analysis.draw_flow(flow, options.count, note))
            alone = analysis.draw_position_alone(*chosen, options.count, note)
            command.write(f'flow_alone_{name}', alone)
            command.write(f'flow_layers_{name}', analysis.draw_layers(*chosen, note))
            command.write(f'flow_sum_{name}', analysis.draw_sum(flow, note))
            command.write(f'flow_{name}', arrays=flow.arrays())


if __name__ == '__main__':
    run(main)
