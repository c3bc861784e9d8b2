"""Mean attention distance per head and layer (DTN, ICLR 2022, Figure 2 and appendix B.1), the mean over images.

    python tools/analysis_tools/attention_distance.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...]

Writes ``attention_distance.png``, with a panel per stage, and ``attention_distance_<part>.npz`` for each. See
docs/pictures_dtn.md.
"""

from mmlape import analysis
from mmlape.analysis.command import Output, add_images, backbone_of, images_of, layer_parser, run


def parse_arguments():
    parser = layer_parser('Draw how far the heads of attention look.')
    add_images(parser)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output, backbone = Output(options), backbone_of(options)
    stages = analysis.find_stages(backbone, options.part)
    _, images = images_of(options)
    found = analysis.attention_distances(backbone, images, stages, options.layers)
    output.picture('attention_distance', analysis.draw_distances(found))
    for distances in found:
        output.arrays(f'attention_distance_{distances.stage}', distances.arrays())


if __name__ == '__main__':
    run(main)
