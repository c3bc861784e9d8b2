"""Distance of tokens from the mean that a norm subtracts, per layer (DTN, ICLR 2022, Figure 3 (b)).

    mmlape picture token_variation CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--norm norm2]

Writes ``variation_<norm>.png`` for all parts, and ``variation_<part>_<norm>.npz`` for each. See `mmlape docs pictures`.
"""

from mmlape.cli.pictures import STAGE, Command, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=STAGE, layers='all', images=True, norms=True)
    options, backbone = command.parse(), command.backbone()
    stages = analysis.find_stages(backbone, options.part)
    images = (image for _, image in command.images())
    found = analysis.token_variation(
        backbone, images, stages, options.layers, options.norm, options.compare
    )
    command.write(f'variation_{options.norm}', analysis.draw_variation(found))
    for stage in found:
        command.write(f'variation_{stage.stage}_{stage.norm}', arrays=stage.arrays())


if __name__ == '__main__':
    run(main)
