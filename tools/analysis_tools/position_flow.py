"""Where position is in queries, keys, values and layer outputs (Gabor position encoding, Figures 8 to 10).

    python tools/analysis_tools/position_flow.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--layer 0]

Writes ``flow_<part>_<image>`` (Figure 8), ``flow_alone_<part>_<image>`` (Figure 9), ``flow_layers_<part>_<image>``
(Figure 10), as PNG, and their arrays. See docs/pictures.md.
"""

import argparse

from mmlape import analysis
from mmlape.analysis.command import (
    Output,
    add_images,
    backbone_of,
    images_of,
    model_parser,
    names_of,
    run,
)


def parse_arguments() -> argparse.Namespace:
    parser = model_parser('Draw where position is in a network.', with_prefix=False)
    add_images(parser)
    parser.add_argument('--layer', type=int, default=0, help='0-based (default 0)')
    parser.add_argument(
        '--channels',
        type=int,
        nargs='+',
        help='of Figures 9 and 10; default: where position is strongest, and weakest',
    )
    parser.add_argument(
        '--count', type=int, default=3, help='channels of each kind in Figure 8 (default 3)'
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output = Output(options)
    backbone = backbone_of(options)
    initial = options.checkpoint is None and not options.pretrained
    note = 'initial values: nothing was trained' if initial else ''
    paths, images = images_of(options)
    for image, pixels in zip(names_of(paths), images):
        for stage in analysis.position_stages(backbone, options.part):
            flow = analysis.position_flow(backbone, pixels, stage, options.layer)
            name = f'{stage.position_name}_{image}'
            channels, count = options.channels, options.count
            output.picture(f'flow_{name}', analysis.draw_flow(flow, count, note))
            alone = analysis.draw_position_alone(flow, channels, count, note)
            output.picture(f'flow_alone_{name}', alone)
            output.picture(f'flow_layers_{name}', analysis.draw_layers(flow, channels, note))
            output.arrays(f'flow_{name}', flow.arrays())


if __name__ == '__main__':
    run(main)
