"""Time and memory over image size and batch size, for each backbone and its baseline.

    python -m benchmarks.scaling [--only pvt] [--clock processor] [--plot]

Times are of inference and of a training step; memory is that saved for backward, counted without computing, so that it
includes sizes that do not fit into the machine. Points are saved at once and skipped in later calls, unless
``--again``. ``--plot`` only draws the record.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .__main__ import quieten
from .cases import OURS, Case, adapter, pvt_small, swin_tiny, vit
from .measuring import TIMES, time_of
from .side_by_side import (
    CLOCKS,
    CLONE,
    keep_freed_memory,
    saved_bytes,
    taken_for_eager,
    write_record,
)

RECORD = CLONE / 'benchmarks/records/scaling_cpu.json'
PICTURE = CLONE / 'docs/images/scaling-{axis}.png'
SIDES = (128, 256, 384, 512, 768, 1024, 1536)
BATCHES = (1, 2, 4, 8)
# Name: a case for a side and a batch, and the side at which batches are compared.
NETWORKS: dict[str, tuple[Callable[[int, int], Case], int]] = {
    'ViT-Adapter-Ti, segmentation': (partial(adapter, 'segmentation'), 256),
    'ViT-Adapter-Ti, detection': (partial(adapter, 'detection'), 256),
    'ViT-Ti': (partial(vit, 'tiny'), 224),
    'PVT-Small': (lambda side, batch: pvt_small(side, side, batch), 224),
    'Swin-T': (swin_tiny, 224),
}
TICKS = (1, 2, 4, 8, 128, 256, 512, 1024)
AXES = {'side': 'side of the image (pixels)', 'batch': 'images of the batch'}
MEASURES = {
    'forward': 'inference, ms',
    'train_step': 'training step, ms',
    'kept': 'saved for backward, MB',
}


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(1)
    quieten()
    found = {} if options.again or not options.out.exists() else read(options.out)
    if not options.plot:
        settings = dict(freed_memory_is_kept=keep_freed_memory(), clock=options.clock)
        for name in filter(lambda name: options.only.lower() in name.lower(), NETWORKS):
            for axis, side, batch in points(NETWORKS[name][1]):
                at = str(side if axis == 'side' else batch)
                if at in found.setdefault(name, {}).setdefault(axis, {}):
                    continue
                found[name][axis][at] = point(NETWORKS[name][0](side, batch), options)
                write_record(options.out, {**settings, 'networks': found}, show=False)
                print(name, axis, at, json.dumps(found[name][axis][at]), flush=True)
    for axis in AXES:
        draw(found, axis, Path(str(options.pictures).format(axis=axis)))
    print('\n'.join(exponents(found)))
    return 0


def parse_arguments() -> argparse.Namespace:
    summary, usage = __doc__.splitlines()[0], __doc__.split('\n\n')[2]
    parser = argparse.ArgumentParser('python -m benchmarks.scaling', None, summary, usage)
    parser.add_argument(
        '--only', default='', metavar='SUBSTRING', help='networks with it in the name'
    )
    parser.add_argument('--repeats', type=int, default=3, help='turns (default: 3)')
    parser.add_argument('--longest', type=float, default=20, help='maximum seconds of one call')
    parser.add_argument(
        '--most', type=float, default=6, help='maximum gigabytes saved for backward'
    )
    parser.add_argument('--clock', choices=CLOCKS, default='wall')
    parser.add_argument('--again', action='store_true', help='measure again what the record has')
    parser.add_argument('--plot', action='store_true', help='measure nothing')
    parser.add_argument('--out', type=Path, default=RECORD)
    parser.add_argument('--pictures', type=Path, default=PICTURE, help='with {axis} in the name')
    return parser.parse_args()


def points(side_of_batches: int) -> list[tuple[str, int, int]]:
    """(axis, side, batch)."""
    by_side = [('side', side, 1) for side in SIDES]
    return by_side + [('batch', side_of_batches, batch) for batch in BATCHES]


def point(case: Case, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians by measure and name; no training if it would need too much memory."""
    names = [name for name in case.models if name != 'timm']
    case.models = {name: case.models[name] for name in names}
    found: dict = {'kept': {name: round(kept_megabytes(case, name), 4) for name in names}}
    for label, training in TIMES.items():
        if training and max(found['kept'].values()) > 1e3 * options.most:
            continue
        times = time_of(case, training, options.repeats, CLOCKS[options.clock], options.longest)
        if times:
            found[label] = {name: each['median_ms'] for name, each in times.items()}
    return found


def kept_megabytes(case: Case, name: str) -> float:
    """Memory saved for backward, computed with fake tensors."""
    model = case.models[name]
    model.train()  # upstream's return nothing
    with FakeTensorMode(allow_non_fake_inputs=True), taken_for_eager():
        return saved_bytes(partial(case.call, model)) / 1e6


def read(record: Path) -> dict:
    return json.loads(record.read_text(encoding='utf-8'))['results']['networks']


def exponents(found: dict) -> list[str]:
    """Growth exponents of time and memory with the number of pixels, from 512 to the largest side: 1 is linear."""
    lines = []
    for name, axes in found.items():
        for label in MEASURES:
            there = {int(at): p[label] for at, p in axes.get('side', {}).items() if label in p}
            first, last = 512, max(there, default=0)
            if first not in there or last <= first:
                continue
            grown = {
                who: math.log(there[last][who] / there[first][who]) / (2 * math.log(last / first))
                for who in there[last]
            }
            said = ', '.join(f'{who} {power:.2f}' for who, power in grown.items())
            lines.append(f'{name}, {label}, {first} to {last}: pixels to the power of {said}')
    return lines


def draw(found: dict, axis: str, path: Path) -> None:
    """A row of panels for each network, a column for each measure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    from mmlape.apps.report import save_figure

    figure = Figure(figsize=(9, 2.1 * len(found)), layout='constrained')
    panels = figure.subplots(len(found), len(MEASURES), sharex=True, squeeze=False)
    for number, (row, (name, axes)) in enumerate(zip(panels, found.items())):
        for panel, (label, title) in zip(row, MEASURES.items()):
            there = {int(at): p[label] for at, p in axes.get(axis, {}).items() if label in p}
            for who in next(iter(there.values()), {}):
                style = (
                    dict(color='C1', marker='o') if who == OURS else dict(color='0.5', marker='s')
                )
                panel.plot(
                    list(there), [each[who] for each in there.values()], label=who, ms=4, **style
                )
            panel.set(xscale='log', yscale='log')
            panel.set_title(title if number == 0 else '', fontsize=9)
            ticks = [at for at in TICKS if str(at) in axes.get(axis, {})]
            panel.set_xticks(ticks, ticks)
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter('{x:g}')
            panel.minorticks_off()
            panel.tick_params(labelsize=8)
            panel.grid(alpha=0.3)
            panel.set_xlabel(AXES[axis] if number == len(found) - 1 else '', fontsize=8)
        row[0].set_ylabel(name.replace(', ', ',\n'), fontsize=8)
        row[0].legend(fontsize=8)
    save_figure(figure, path)


if __name__ == '__main__':
    sys.exit(main())
