"""DTN's ratios during a training (DTN, ICLR 2022, Figure 8), from the log of ``mmlape.DTNRatioHook``.

    mmlape picture dtn_ratios WORK_DIR [--out FOLDER]

Writes ``dtn_ratios.png`` and ``.npz``. See `mmlape docs pictures`.
"""

from pathlib import Path

from mmlape.cli.arguments import EXISTING, NEW_FOLDER, Parser
from mmlape.cli.pictures import run, write_results
from mmlape.research import analysis


def main() -> None:
    description = "Draw DTN's ratios over a training."
    parser = Parser(
        'picture dtn_ratios',
        description,
        'work_dirs/my_config',
        'work_dirs/my_config --out pictures',
    )
    runs = 'work folder, vis_data folder or scalars.json; several are joined in this order'
    parser.add_argument('runs', type=EXISTING, nargs='+', help=runs)
    out = 'folder; default: work_dirs/pictures/<name of the first run>'
    parser.add_argument('--out', type=NEW_FOLDER, help=out)
    options = parser.parse_args()
    course = analysis.read_ratios(options.runs)
    folder = options.out or Path('work_dirs/pictures', options.runs[0].resolve().stem)
    write_results(folder, 'dtn_ratios', analysis.draw_ratios(course), course.arrays())


if __name__ == '__main__':
    run(main)
