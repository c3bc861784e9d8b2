"""Measure parameters, FLOPs and memory of the zoo's models and write their page.

    python tools/developers/zoo_table.py [--config PATTERN ...] [--out docs/model_zoo.md] [--check]

Writes the page, the record ``benchmarks/records/model_zoo.json`` and the figures in ``configs/*/metafile.yml``. With
``--out``, only that page and a record beside it (``.json``). See docs/model_zoo.md.
"""

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from mmlape.research import analysis

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'model_zoo.md'
RECORD = ROOT / 'benchmarks' / 'records' / 'model_zoo.json'


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the zoo's rows and write their page.",
    )
    parser.add_argument(
        '--config',
        nargs='+',
        metavar='PATTERN',
        help="names to measure, e.g. 'upernet*'; default: all rows",
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=PAGE,
        help='another page, with a record beside it (default docs/model_zoo.md)',
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help='do not measure or write; fail if the page differs from configs and metafiles',
    )
    options = parser.parse_args()
    if not options.out.parent.is_dir():
        parser.error(f'no folder {options.out.parent}; say with --out where the page is to be')
    options.out = options.out.resolve()
    return options


def check(zoo, page: Path) -> int:
    problems = zoo.problems()
    written = page.read_text(encoding='utf-8') if page.is_file() else ''
    if not problems and written != zoo.page(page.parent):
        problems.append(f'{page.name} is not what its record and the metafiles say')
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print('Run tools/developers/zoo_table.py again.', file=sys.stderr)
    return bool(problems)


def main() -> int:
    options = parse_arguments()
    from mmengine.config import Config

    from mmlape.research.zoo import Zoo, read_reports, read_rows, write_measured

    rows = read_rows(ROOT)
    reports = read_reports(ROOT)
    record = RECORD if options.out == PAGE else options.out.with_suffix('.json')
    zoo = Zoo(rows, record, reports)
    if options.check:
        return check(zoo, options.out)
    patterns = options.config or ['*']
    chosen = [row for row in rows if any(fnmatch(row.name, pattern) for pattern in patterns)]
    if not chosen:
        raise SystemExit(f'no row is named {" or ".join(patterns)}')
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
    if options.out == PAGE:
        for metafile in {row.metafile for row in rows}:
            write_measured(metafile, zoo.measured)
    written = Zoo(read_rows(ROOT), zoo.path, reports)
    options.out.write_text(written.page(options.out.parent), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
