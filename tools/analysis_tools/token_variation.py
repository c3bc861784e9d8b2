"""How far tokens are from the mean that a norm subtracts, layer by layer (DTN, ICLR 2022, Figure 3 (b)).

    python tools/analysis_tools/token_variation.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--norm norm2]

Writes ``variation_<norm>.png`` for all parts, and ``variation_<part>_<norm>.npz`` for each. See docs/pictures_dtn.md.
"""

from mmlape import analysis
from mmlape.analysis.command import Output, backbone_of, images_of, norm_parser, run


def main() -> None:
    parser = norm_parser('Draw how far tokens are from the mean of a norm.', layers='all')
    options = parser.parse_args()
    output = Output(options)
    backbone = backbone_of(options)
    stages = analysis.find_stages(backbone, options.part)
    _, images = images_of(options)
    found = analysis.token_variation(
        backbone, images, stages, options.layers, options.norm, options.compare
    )
    output.picture(f'variation_{options.norm}', analysis.draw_variation(found))
    for stage in found:
        output.arrays(f'variation_{stage.stage}_{stage.norm}', stage.arrays())


if __name__ == '__main__':
    run(main)
