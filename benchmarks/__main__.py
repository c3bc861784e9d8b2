"""Our networks and norms beside upstream's, timm's and published maths: on the same weights, in one process, in turns.

    python -m benchmarks [--only pvt] [--repeats 7] [--threads 1] [--clock processor]

Outputs must agree to 1e-4 of their size before a time counts. ``faster`` is their time by ours, ``bytes`` is what we
keep for the backward pass by what they keep; of a norm, times are given as multiples of LayerNorm's too. The cases are
in ``benchmarks/cases.py``. A record goes to ``benchmarks/records``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from .cases import CASES, OURS, Case
from .side_by_side import (
    CLOCKS,
    compared,
    in_turns,
    keep_freed_memory,
    milliseconds,
    saved_bytes,
    write_record,
)

RECORD = Path(__file__).parent / 'records' / 'upstream_cpu.json'
TOLERANCE = 1e-4  # of the largest value
TURN_MS = 30  # a turn repeats what takes less
# Name in the record: whether it is a step of training.
TIMES = {'forward': False, 'train_step': True}


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    quieten()
    settings = dict(freed_memory_is_kept=keep_freed_memory(), clock=options.clock)
    found = {}
    for name in options.names:
        torch.manual_seed(0)
        found[name] = measure(CASES[name](), options.repeats, CLOCKS[options.clock])
        print('\n'.join(lines_of(name, found[name])), flush=True)
    write_record(options.out, {**settings, 'repeats': options.repeats, 'cases': found}, show=False)
    return 0


def parse_arguments() -> argparse.Namespace:
    summary, usage = __doc__.splitlines()[0], __doc__.split('\n\n')[2]
    parser = argparse.ArgumentParser('python -m benchmarks', None, summary, usage)
    parser.add_argument('--only', default='', metavar='SUBSTRING', help='cases with it in the name')
    parser.add_argument('--repeats', type=int, default=5, help='turns that count (default: 5)')
    parser.add_argument('--threads', type=int, default=1, help='of both sides (default: 1)')
    parser.add_argument(
        '--clock', choices=CLOCKS, default='wall',
        help="'processor' leaves out what other processes took, for a machine that is not idle",
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


def measure(case: Case, repeats: int, clock: Callable[[], float]) -> dict:
    """Times of everyone in turns, bytes kept, and the largest difference of the outputs relative to their size."""
    for model in case.models.values():
        model.to(device())
    case.inputs = tuple(to_device(each) for each in case.inputs)
    found: dict = dict(size=case.size, difference=differences(case))
    for name, training in TIMES.items():
        for model in case.models.values():
            model.train(training)
        call = train_step if training else infer
        calls = {key: partial(call, case, model) for key, model in case.models.items()}
        once = {key: milliseconds(each, clock) for key, each in calls.items()}
        number = max(1, round(TURN_MS / max(min(once.values()), 1e-3)))
        turns = {key: partial(mean_time, each, number, clock) for key, each in calls.items()}
        found[name] = compared(in_turns(turns, repeats, warm_up=int(number > 1)))
    found['saved_bytes'] = {
        key: saved_bytes(partial(case.call, model)) for key, model in case.models.items()
    }
    return found


def differences(case: Case) -> dict[str, float]:
    """Of those that must agree with ours; RuntimeError where one does not: its time would say nothing."""
    for model in case.models.values():
        model.train(False)
    with torch.no_grad():
        expected = case.call(case.models[OURS])
        found = {}
        for name in case.alike:
            pairs = list(zip(case.call(case.models[name]), expected, strict=True))
            found[name] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
            if not found[name] <= TOLERANCE:
                raise RuntimeError(
                    f'{name} and ours differ by {found[name]:.1e}: nothing to compare'
                )
    return found


@torch.no_grad()
def infer(case: Case, model: nn.Module) -> None:
    case.call(model)


def train_step(case: Case, model: nn.Module) -> None:
    """Forward and backward; the optimizer's step depends on the number of parameters alone."""
    model.zero_grad()
    first = case.inputs[0]
    first.grad = None
    first.requires_grad_(case.input_grad)
    sum(output.square().mean() for output in case.call(model)).backward()
    first.requires_grad_(False)


def mean_time(call: Callable[[], object], number: int, clock: Callable[[], float]) -> float:
    """Milliseconds of one of ``number`` calls."""
    return milliseconds(lambda: [call() for _ in range(number)], clock) / number


def lines_of(name: str, found: dict) -> list[str]:
    """The case in words: one line for each that ours is compared with."""
    lines = [f'{name} ({found["size"]})']
    for other in filter(OURS.__ne__, found['forward']):
        parts = [f'{label}: {cell(found[label], other)}' for label in TIMES]
        kept = found['saved_bytes']
        parts.append(f'bytes: {kept[OURS] / kept[other]:.2f}')
        lines.append(f'    beside {other}: {"; ".join(parts)}')
    return lines


def cell(times: dict, other: str) -> str:
    """Their time, ours, and the ratio: how many times faster ours is, or as how many LayerNorms it counts."""
    theirs, ours = (f'{times[key]["median_ms"]:.4g}' for key in (other, OURS))
    spread = max(times[key]['iqr_ms'] / times[key]['median_ms'] for key in (other, OURS))
    ratio = times[other]['ratio'] / times[OURS]['ratio']
    said = f'{1 / ratio:.1f} x LayerNorm' if other == 'LayerNorm' else f'{ratio:.2f} x faster'
    return f'{theirs} -> {ours} ms, {said} (quartiles {100 * spread:.0f} %)'


def device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def to_device(value: object) -> object:
    return value.to(device()) if isinstance(value, Tensor) else value


def quieten() -> None:
    """What upstream's classes log and warn of while they are built."""
    logging.disable(logging.WARNING)
    warnings.simplefilter('ignore')


if __name__ == '__main__':
    sys.exit(main())
