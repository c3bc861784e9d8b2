"""Compare our networks and norms with upstream's, timm's and published maths: same weights, one process, in turns.

    python -m benchmarks [--only pvt] [--repeats 7] [--threads 1] [--clock processor] [--dtype bfloat16]

Times count only if outputs agree to 1e-4 of their size. Prints a table: their median and ours, the ratio of their time
to ours (above 1, ours is faster; for a norm, the multiple of LayerNorm's), and the ratio of our memory saved for
backward to theirs. The cases are in ``benchmarks/cases.py``; a record with quartiles goes to ``benchmarks/records``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path

import torch

from .cases import CASES, OURS
from .measuring import TIMES, measure
from .side_by_side import CLOCKS, keep_freed_memory, write_record

HEAD = (
    '| what | compared with | forward | training step | saved for backward |\n|---|---|---|---|---|'
)
RECORD = Path(__file__).parent / 'records' / 'upstream_cpu.json'


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    quieten()
    settings = dict(
        freed_memory_is_kept=keep_freed_memory(), clock=options.clock, dtype=options.dtype
    )
    dtype = getattr(torch, options.dtype)
    found = {}
    print(HEAD)
    for name in options.names:
        torch.manual_seed(0)
        found[name] = measure(CASES[name](), options.repeats, CLOCKS[options.clock], dtype)
        print('\n'.join(rows(name, found[name])), flush=True)
    write_record(options.out, {**settings, 'repeats': options.repeats, 'cases': found}, show=False)
    return 0


def parse_arguments() -> argparse.Namespace:
    summary, usage = __doc__.splitlines()[0], __doc__.split('\n\n')[2]
    parser = argparse.ArgumentParser('python -m benchmarks', None, summary, usage)
    parser.add_argument('--only', default='', metavar='SUBSTRING', help='cases with it in the name')
    parser.add_argument('--repeats', type=int, default=5, help='measured turns (default: 5)')
    parser.add_argument('--threads', type=int, default=1, help='of both sides (default: 1)')
    parser.add_argument(
        '--clock', choices=CLOCKS, default='wall',
        help="'processor' excludes the time of other processes, for a machine that is not idle",
    )  # fmt: skip
    parser.add_argument(
        '--dtype', choices=['float32', 'bfloat16'], default='float32',
        help='of autocast (default: float32, without it)',
    )  # fmt: skip
    parser.add_argument(
        '--out', type=Path, default=RECORD, help='the record (default: %(default)s)'
    )
    options = parser.parse_args()
    for name in ('repeats', 'threads'):
        if getattr(options, name) < 1:
            parser.error(f'--{name} {getattr(options, name)}: expected a positive number')
    options.names = [name for name in CASES if options.only in name]
    if not options.names:
        parser.error(
            f'--only {options.only}: no case has that in its name; there are {", ".join(CASES)}'
        )
    return options


def row(name: str, other: str, found: dict) -> str:
    """A line of the table: ours and another."""
    kept = found['saved_bytes']
    cells = [f'{name}, {found["size"]}', other, *(cell(found[label], other) for label in TIMES)]
    return f'| {" | ".join([*cells, f"{kept[OURS] / kept[other]:.2f}x"])} |'


def rows(name: str, found: dict) -> list[str]:
    """A line for each model that ours is compared with."""
    return [row(name, other, found) for other in found['forward'] if other != OURS]


def cell(times: dict, other: str) -> str:
    """Format their time, ours, and the ratio."""
    theirs, ours = (f'{times[key]["median_ms"]:.3g}' for key in (other, OURS))
    return f'{theirs} -> {ours} ms, {speeds([times], other)}'


def speeds(measured: list[dict], other: str) -> str:
    """The speed-ups of ours, or its costs in LayerNorms."""
    ratios = [times[other]['ratio'] / times[OURS]['ratio'] for times in measured]
    if other == 'LayerNorm':
        return f'{" / ".join(f"{1 / ratio:.1f}" for ratio in ratios)} LayerNorms'
    return ' / '.join(f'{ratio:.2f}x' for ratio in ratios)


def times_table(records: dict[str, Path]) -> str:
    """Our networks' milliseconds in several records of the same cases: forward pass / training step."""
    found = cases_of(records)
    lines = [f'| backbone | {" | ".join(found)} |', f'|---|{"---|" * len(found)}']
    for name, case in next(iter(found.values())).items():
        if 'LayerNorm' not in case['forward']:
            each = (
                [cases[name][label][OURS]['median_ms'] for label in TIMES]
                for cases in found.values()
            )
            cells = (' / '.join(f'{value:.3g}' for value in values) for values in each)
            lines.append(f'| {name} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def compared_table(records: dict[str, Path]) -> str:
    """Records of the same cases beside one another: speeds of the forward pass and of a training step, and memory."""
    found = cases_of(records)
    lines = [
        f'| what | compared with | {" | ".join(found)} | saved for backward |',
        f'|---|---|{"---|" * len(found)}---|',
    ]
    for name, case in next(iter(found.values())).items():
        for other in filter(lambda other: other != OURS, case['forward']):
            cells = [
                speeds([cases[name][label] for label in TIMES], other) for cases in found.values()
            ]
            kept = case['saved_bytes'][OURS] / case['saved_bytes'][other]
            lines.append(f'| {" | ".join([name, other, *cells, f"{kept:.2f}x"])} |')
    return '\n'.join(lines)


def cases_of(records: dict[str, Path]) -> dict[str, dict]:
    """Read the results of each case."""
    return {
        name: json.loads(path.read_text(encoding='utf-8'))['results']['cases']
        for name, path in records.items()
    }


def quieten() -> None:
    """Silence logs and warnings of upstream's classes while they are built."""
    logging.disable(logging.WARNING)
    warnings.simplefilter('ignore')


if __name__ == '__main__':
    sys.exit(main())
