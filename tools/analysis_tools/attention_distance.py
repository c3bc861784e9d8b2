"""Mean attention distance per head and layer (DTN, ICLR 2022, Figure 2 and appendix B.1), the mean over images.

    mmlape picture attention_distance CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...]

Writes ``attention_distance.png``, with a panel per stage, and ``attention_distance_<part>.npz`` for each. See
`mmlape docs pictures`.
"""

from mmlape.cli.pictures import STAGE, Command, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=STAGE, layers='all', images=True)
    options, backbone = command.parse(), command.backbone()
    stages = analysis.find_stages(backbone, options.part)
    images = (image for _, image in command.images())
    found = analysis.attention_distances(backbone, images, stages, options.layers)
    command.write('attention_distance', analysis.draw_distances(found))
    for distances in found:
        command.write(f'attention_distance_{distances.stage}', arrays=distances.arrays())


if __name__ == '__main__':
    run(main)
