"""Tokens before and after a norm in the plane of their first principal components (DTN, ICLR 2022, Figure 9).

    python tools/analysis_tools/token_pca.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--layers 0]

Writes ``pca_<part>_<norm>_<image>.png`` and ``.npz``. See docs/pictures_dtn.md.
"""

from mmlape import analysis
from mmlape.analysis.command import Output, array_name, norm_parser, run, tokens_of


def parse_arguments():
    parser = norm_parser('Draw principal components of tokens before and after a norm.', True)
    parser.add_argument(
        '--directions', action='store_true', help='scale every token to length one first'
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    output = Output(options)
    for image, layers in tokens_of(options):
        projections = {
            tokens.name: analysis.project_versions(tokens, options.prefix, options.directions)
            for tokens in layers
        }
        first = layers[0]
        name = f'pca_{first.stage}_{options.norm}_{image}'
        output.picture(name, analysis.draw_projections(projections, first.grid))
        arrays = {}
        for layer, found in projections.items():
            for version, projection in found.items():
                for part, value in vars(projection).items():
                    arrays[f'{part}_{array_name(layer)}_{array_name(version)}'] = value
        output.arrays(name, arrays)


if __name__ == '__main__':
    run(main)
