"""Tokens before and after a norm in the plane of their first principal components (DTN, ICLR 2022, Figure 9).

    mmlape picture token_pca CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--layers 0]

Writes ``pca_<part>_<norm>_<image>.png`` and ``.npz``. See `mmlape docs pictures`.
"""

from mmlape.cli.pictures import STAGE, Command, array_name, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=STAGE, layers='0', prefix=True, images=True, norms=True)
    directions = 'scale every token to length one first'
    command.add('--directions', action='store_true', help=directions)
    options = command.parse()
    for image, layers in command.tokens():
        projections = {
            tokens.name: analysis.project_versions(tokens, options.prefix, options.directions)
            for tokens in layers
        }
        arrays = {
            f'{part}_{array_name(layer)}_{array_name(version)}': value
            for layer, found in projections.items()
            for version, projection in found.items()
            for part, value in projection._asdict().items()
        }
        figure = analysis.draw_projections(projections, layers[0].grid)
        command.write(f'pca_{layers[0].stage}_{options.norm}_{image}', figure, arrays)


if __name__ == '__main__':
    run(main)
