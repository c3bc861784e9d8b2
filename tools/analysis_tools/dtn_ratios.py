"""How DTN's ratios went during a training (DTN, ICLR 2022, Figure 8), from what ``mmlape.DTNRatioHook`` logged.

    python tools/analysis_tools/dtn_ratios.py WORK_DIR [--out FOLDER]

Writes ``dtn_ratios.png`` and ``.npz``. See docs/pictures_dtn.md.
"""

import argparse
from pathlib import Path

from mmlape import analysis
from mmlape.analysis.command import Output, run


def parse_arguments():
    parser = argparse.ArgumentParser(description="Draw the course of DTN's ratios.")
    parser.add_argument(
        'runs',
        nargs='+',
        help='work folder, vis_data folder or scalars.json; several are joined in this order',
    )
    parser.add_argument(
        '--out', type=Path, help='folder; default: work_dirs/pictures/<name of the first run>'
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    course = analysis.read_ratios(options.runs)
    output = Output(argparse.Namespace(out=options.out, config=Path(options.runs[0]).resolve()))
    output.picture('dtn_ratios', analysis.draw_ratios(course))
    output.arrays('dtn_ratios', course.arrays())


if __name__ == '__main__':
    run(main)
