"""Mean attention distance per head and layer (DTN, ICLR 2022, Figure 2 and appendix B.1), the mean over images.

    python tools/analysis_tools/attention_distance.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...]

Writes ``attention_distance.png``, with a panel per stack of layers, and ``attention_distance_<part>.npz`` for each. See
docs/pictures_dtn.md.
"""

from mmlape.analysis import attention_distances, draw_distances, find_layer_stacks
from mmlape.analysis.command import Output, backbone_of, run
from mmlape.analysis.layer_command import add_images, images_of, layer_parser


def parse_arguments():
    parser = layer_parser('Draw how far the heads of attention look.')
    add_images(parser)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output, backbone = Output(options), backbone_of(options)
    stacks = find_layer_stacks(backbone, options.part)
    _, images = images_of(options)
    found = attention_distances(backbone, images, stacks, options.layers)
    output.picture('attention_distance', draw_distances(found))
    for distances in found:
        output.arrays(f'attention_distance_{distances.stack}', distances.arrays())


if __name__ == '__main__':
    run(main)
