"""How long tokens are before and after a norm, per head, beside LN, IN and DTN (DTN, ICLR 2022, Figure 1).

    python tools/analysis_tools/token_magnitude.py CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--layers 0]

Writes ``magnitude_<part>_<layer>_<norm>_<image>.png`` and ``.npz``. See docs/pictures_dtn.md.
"""

from mmlape import analysis
from mmlape.analysis.command import Output, array_name, norm_parser, run, tokens_of


def main() -> None:
    options = norm_parser('Draw how long tokens are before and after a norm.').parse_args()
    output = Output(options)
    for image, layers in tokens_of(options):
        for tokens in layers:
            maps = analysis.magnitude_maps(tokens)
            name = f'magnitude_{tokens.stage}_{array_name(tokens.name)}_{image}'
            output.picture(name, analysis.draw_magnitudes(maps))
            output.arrays(name, {array_name(version): value for version, value in maps.items()})


if __name__ == '__main__':
    run(main)
