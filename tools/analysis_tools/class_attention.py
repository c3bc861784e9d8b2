"""Attention of the class token over each image, per head (DINO, ICCV 2021, Figure 1).

    mmlape picture class_attention CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...]

Writes ``class_attention_<image>.png`` and ``.npz`` for each image. See `mmlape docs pictures`.
"""

from mmlape.cli.arguments import at_least
from mmlape.cli.pictures import STAGE, Command, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, part=STAGE, layers='the last one', images=True)
    token = 'which prefix token; default: 0, the class token (distillation and registers follow)'
    command.add('--token', type=at_least(0), default=0, help=token)
    options, backbone = command.parse(), command.backbone()
    for name, image in command.images():
        found = analysis.class_attention(
            backbone, image, options.part, options.layers, options.token
        )
        figure = analysis.draw_class_attention([found])
        command.write(f'class_attention_{name}', figure, found.arrays())


if __name__ == '__main__':
    run(main)
