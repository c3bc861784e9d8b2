"""What a network notices when the patches of an image change places, with its position and without.

    python tools/analysis_tools/patch_order.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--size 224 224]

Writes ``order_<image>.png`` and ``.npz``. See docs/position.md.
"""

from mmlape import analysis
from mmlape.analysis.command import (
    Output,
    add_images,
    backbone_of,
    config_of,
    images_of,
    model_parser,
    names_of,
    run,
)


def parse_arguments():
    parser = model_parser(
        'Compare tokens of an image with those of the same patches in another order.',
        part=None,
        with_prefix=False,
    )
    add_images(parser)
    parser.add_argument('--order', type=int, default=0, help='seed of the order (default 0)')
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output = Output(options)
    backbone = backbone_of(options)
    paths, images = images_of(options)
    shown = list(zip(names_of(paths), images))
    configured = [analysis.patch_order(backbone, image, options.order) for _, image in shown]
    plain = analysis.load_backbone(analysis.without_position(config_of(options)))
    plain.load_state_dict(backbone.state_dict(), strict=False)  # all that is not position
    for (name, image), found in zip(shown, configured):
        without = analysis.patch_order(plain, image, options.order)
        states = {'without position': without, 'as configured': found}
        output.picture(f'order_{name}', analysis.draw_patch_order(states))
        arrays = {**found.arrays(), 'differences_without': without.differences}
        output.arrays(f'order_{name}', arrays)


if __name__ == '__main__':
    run(main)
