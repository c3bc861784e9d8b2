"""Measure the model zoo, or some of its rows, and write its page.

    python tools/developers/zoo_table.py [--config PATTERN ...] [--check]

Writes the tables of ``docs/model_zoo.md`` (of the rows that they have), the record
``benchmarks/records/model_zoo.json`` and the figures in ``configs/*/metafile.yml``.
"""

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from mmlape.research import analysis

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'model_zoo.md'
RECORD = ROOT / 'benchmarks' / 'records' / 'model_zoo.json'


def check(zoo) -> int:
    problems = zoo.problems()
    if not problems and PAGE.read_text(encoding='utf-8') != zoo.page(PAGE):
        problems.append(f'{PAGE.name} is not what its record and the metafiles say')
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print('Run tools/developers/zoo_table.py again.', file=sys.stderr)
    return bool(problems)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the zoo's rows and write their page.")
    parser.add_argument(
        '--config', nargs='+', metavar='PATTERN', default=['*'],
        help="names to measure, e.g. 'upernet*'; default: all rows",
    )  # fmt: skip
    parser.add_argument(
        '--check', action='store_true',
        help='do not measure or write; fail if the page differs from configs and metafiles',
    )  # fmt: skip
    options = parser.parse_args()
    from mmengine.config import Config

    from mmlape.research.zoo import Zoo, read_reports, read_rows, write_measured

    rows, reports = read_rows(ROOT), read_reports(ROOT)
    zoo = Zoo(rows, RECORD, reports)
    if options.check:
        return check(zoo)
    chosen = [row for row in rows if any(fnmatch(row.name, each) for each in options.config)]
    if not chosen:
        raise SystemExit(f'no row is named {" or ".join(options.config)}')
    for row in chosen:
        config = Config.fromfile(row.path)
        complexity = analysis.measure_complexity(config)
        memory = analysis.measure_step_memory(config)
        zoo.put(row, complexity, memory)
        zoo.save()  # all rows take hours
        print(
            f'{row.name}: {complexity.parameters:,} parameters, {complexity.flops:,} FLOPs, '
            f'{memory.total:,} bytes',
            flush=True,
        )
    for metafile in {row.metafile for row in rows}:
        write_measured(metafile, zoo.measured)
    written = Zoo(read_rows(ROOT), RECORD, reports).page(PAGE)
    PAGE.write_text(written, encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
