"""Where the class token looks: its attention over each image, per head (DINO, ICCV 2021, Figure 1).

    python tools/analysis_tools/class_attention.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...]

Writes ``class_attention_<image>.png`` and ``.npz`` for each image. See docs/pictures.md.
"""

from mmlape import analysis
from mmlape.analysis.command import (
    Output,
    add_images,
    backbone_of,
    images_of,
    layer_parser,
    names_of,
    run,
)


def parse_arguments():
    parser = layer_parser('Draw where the class token looks.', layers='the last one')
    add_images(parser)
    parser.add_argument(
        '--token',
        type=int,
        default=0,
        help='which prefix token; default: 0, the class token (distillation and registers follow)',
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output, backbone = Output(options), backbone_of(options)
    paths, images = images_of(options)
    for name, image in zip(names_of(paths), images):
        found = analysis.class_attention(
            backbone, image, options.part, options.layers, options.token
        )
        output.picture(f'class_attention_{name}', analysis.draw_class_attention([found]))
        output.arrays(f'class_attention_{name}', found.arrays())


if __name__ == '__main__':
    run(main)
