"""Effect of permuting the patches of an image on a network, with and without its position.

    mmlape picture patch_order CONFIG [CHECKPOINT] --images FILE_OR_FOLDER [...] [--size 224 224]

Writes ``order_<image>.png`` and ``.npz``. See `mmlape docs position`.
"""

from mmlape.cli.pictures import Command, overridden_config, run
from mmlape.research import analysis


def main() -> None:
    command = Command(__doc__, images=True)
    command.add('--order', type=int, default=0, help='seed of the permutation (default 0)')
    options, backbone = command.parse(), command.backbone()
    shown = list(command.images())
    configured = [analysis.patch_order(backbone, image, options.order) for _, image in shown]
    plain = analysis.load_backbone(analysis.without_position(overridden_config(options)))
    plain.load_state_dict(backbone.state_dict(), strict=False)  # everything except position
    for (name, image), found in zip(shown, configured):
        without = analysis.patch_order(plain, image, options.order)
        figure = analysis.draw_patch_order({'without position': without, 'as configured': found})
        arrays = {**found.arrays(), 'differences_without': without.differences}
        command.write(f'order_{name}', figure, arrays)


if __name__ == '__main__':
    run(main)
