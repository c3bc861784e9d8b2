"""Lengths of tokens before and after a norm, per head, compared with LN, IN and DTN (DTN, ICLR 2022, Figure 1).

    mmlape picture token_magnitude CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--layers 0]

Writes ``magnitude_<part>_<layer>_<norm>_<image>.png`` and ``.npz``. See `mmlape docs pictures`.
"""

from mmlape.cli.pictures import STAGE, Command, array_name, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=STAGE, layers='0', images=True, norms=True)
    command.parse()
    for image, layers in command.tokens():
        for tokens in layers:
            maps = analysis.magnitude_maps(tokens)
            name = f'magnitude_{tokens.stage}_{array_name(tokens.name)}_{image}'
            arrays = {array_name(version): values for version, values in maps.items()}
            command.write(name, analysis.draw_magnitudes(maps), arrays)


if __name__ == '__main__':
    run(main)
