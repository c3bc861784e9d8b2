"""Compare records of `mmlape robustness`: a table and a picture of several models, each with several seeds.

mmlape robustness_table NAME=RECORD.json[,RECORD.json...] [...] [--metric NAME] [--out FOLDER]
"""

from __future__ import annotations

from pathlib import Path

from mmlape import cli
from mmlape.atomic import atomic_write
from mmlape.cli.arguments import NEW_FOLDER, Parser
from mmlape.research import robustness


def parse_arguments():
    parser = Parser(
        'robustness_table', 'Compare records of `mmlape robustness`.', 'lape=a.json,b.json vit=c.json',
        'lape=a.json vit=c.json --metric top1',
    )  # fmt: skip
    parser.add_argument(
        'models', nargs='+', metavar='NAME=RECORD[,RECORD...]',
        help='a row of the table: the mean over its records, one for each seed',
    )  # fmt: skip
    parser.add_argument('--metric', help='metric to show; default: top-1, box AP or mIoU')
    parser.add_argument(
        '--out', type=NEW_FOLDER, default=Path('work_dirs/robustness'), help='folder (%(default)s)'
    )
    options = parser.parse_args()
    with cli.usage():
        options.records = records_of(options.models)
    return options


def records_of(models: list[str]) -> dict:
    """Records by the name of the model.

    Raises:
        ValueError: An argument without a name, a name twice, or a file that is not a record.
    """
    found: dict[str, list] = {}
    for text in models:
        name, sign, files = text.partition('=')
        if not sign or not name or name in found:
            raise ValueError(
                f'expected NAME=RECORD[,RECORD...] with names that differ, got {text!r}'
            )
        found[name] = [robustness.read_record(Path(file)) for file in files.split(',')]
    return found


def main():
    options = parse_arguments()
    from mmlape.apps.report import save_figure

    table = robustness.compare(options.records, options.metric)
    figure = robustness.draw(options.records, options.metric)
    atomic_write(options.out / 'robustness.md', table.encode())
    save_figure(figure, options.out / 'robustness.png')
    print(f'{table}\n{options.out / "robustness.md"}, .png')


if __name__ == '__main__':
    cli.run_program(main)
