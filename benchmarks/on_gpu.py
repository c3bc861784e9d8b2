"""Benchmarks of a GPU in steps of minutes: DTN, networks at published batches, a profile of each, a whole detector.

    python -m benchmarks.on_gpu [--minutes 9] [--only swin ...] [--trial]

Steps are independent, and the record is written after each. What it has is skipped: the same command goes on where the
last one stopped. A step that fails leaves its error there and is tried again. ``--trial`` runs everything at small
sizes into a record of its own, without a GPU too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from torch import nn

from mmlape.layers.attention import read_in_parts
from mmlape.research.datasets import build_digit_scenes

from . import training_step
from .__main__ import quieten
from .cases import (
    KERNELS,
    OURS,
    Case,
    adapter,
    add_kernels,
    dtn,
    pvt_dtn,
    pvt_small,
    swin_tiny,
    vit,
)
from .measuring import TIMES, differences, time_of, to_device, train_step
from .side_by_side import CLOCKS, CLONE, interleaved, peak_bytes, write_record

COMPILED = 'ours, compiled'
LONGEST_MINUTES = 30
KERNELS_SHOWN = 15
# Each name with the case at the published batch of one GPU, and with a small one.
NETWORKS: dict[str, tuple[Callable[[], Case], Callable[[], Case]]] = {
    'ViT-Adapter-Ti, detection': (
        partial(adapter, 'detection', 1024, 2),
        partial(adapter, 'detection', 64),
    ),
    'ViT-Adapter-Ti, segmentation': (
        partial(adapter, 'segmentation', 512, 4),
        partial(adapter, 'segmentation', 64),
    ),
    'PVT-S': (partial(pvt_small, 800, 1344, 2), partial(pvt_small, 64, 96)),
    'PVT-S with DTN': (partial(pvt_dtn, 800, 1344, 2), partial(pvt_dtn, 64, 96)),
    'Swin-T': (partial(swin_tiny, 800, 2, 1344), partial(swin_tiny, 56, 1, 84)),
    'DeiT-S': (partial(vit, 'small', 224, 128), partial(vit, 'small', 32, 2)),
}
# Batch, height, width, channels, heads, pool: the first stages of PVT and Swin, for images of 224 and of 800 x 1216.
NORMS = (
    (8, 56, 56, 64, 4, 4), (8, 28, 28, 128, 4, 2), (8, 14, 14, 320, 5, 1), (8, 7, 7, 512, 8, 1),
    (64, 56, 56, 64, 4, 4), (64, 56, 56, 96, 4, 4), (1, 200, 304, 64, 4, 4), (1, 200, 304, 64, 4, 1),
)  # fmt: skip
# The type of autocast, and whether products of float32 are made in TF32.
PRECISIONS = {
    'float32': (torch.float32, False),
    'TF32': (torch.float32, True),
    'bfloat16': (torch.bfloat16, False),
}


def main() -> int:
    options = parse_arguments()
    quieten()
    record = options.out
    found = json.loads(record.read_text())['results'] if record.is_file() else {}
    started = time.monotonic()
    for name, step in steps(options.trial).items():
        if 'error' not in found.get(name, {'error': ''}):
            continue
        if not all(word.lower() in name.lower() for word in options.only):
            continue
        if time.monotonic() - started > 60 * options.minutes:
            print('The minutes are over. The same command goes on.')
            return 0
        print(name, end=': ', flush=True)
        torch.manual_seed(0)
        try:
            found[name] = step()
        except Exception as error:  # the others are to be measured, with whatever this one has hit
            found[name] = dict(error=f'{type(error).__name__}: {error}'[:2000])
        write_record(record, found, show=False)
        print(said(found[name]), flush=True)
    failed = [name for name, each in found.items() if 'error' in each]
    print(f'{len(found) - len(failed)} steps are in {record}', *failed, sep='\nfailed: ')
    return int(bool(failed))


def parse_arguments() -> argparse.Namespace:
    summary, usage = __doc__.splitlines()[0], __doc__.split('\n\n')[2]
    parser = argparse.ArgumentParser('python -m benchmarks.on_gpu', None, summary, usage)
    parser.add_argument(
        '--minutes', type=float, default=LONGEST_MINUTES,
        help='no step begins after them (default: %(default)s)',
    )  # fmt: skip
    parser.add_argument(
        '--only', nargs='+', default=[], metavar='WORD', help='steps with all of them in the name'
    )
    parser.add_argument('--trial', action='store_true', help='small sizes; needs no GPU')
    parser.add_argument(
        '--out', type=Path, help='the record (default: benchmarks/records/on_gpu.json)'
    )
    options = parser.parse_args()
    if not options.trial and not torch.cuda.is_available():
        parser.error('PyTorch finds no GPU; --trial tries the steps without one')
    kept = 'work_dirs/on_gpu_trial.json' if options.trial else 'benchmarks/records/on_gpu.json'
    options.out = options.out or CLONE / kept
    return options


def steps(trial: bool) -> dict[str, Callable[[], dict]]:
    """All of them by name, in the order of what is needed most."""
    found: dict[str, Callable[[], dict]] = {}
    norms = ((2, 7, 9, 16, 2, 2), (1, 4, 4, 16, 2, 1)) if trial else NORMS
    for batch, height, width, channels, heads, pool in norms:
        case = partial(dtn, height, channels, heads, pool, batch, width)
        shape = f'{batch} x {height} x {width} x {channels}'
        for precision in ('float32', 'bfloat16'):
            name = f'DTN {shape}, pool {pool}, {precision}'
            found[name] = partial(time_case, case, precision, trial)
    for precision in ('float32', 'bfloat16'):
        found[f'queries in parts, {precision}'] = partial(parts_of_queries, precision, trial)
    for precision in PRECISIONS:
        for name, cases in NETWORKS.items():
            found[f'{name}, {precision}'] = partial(time_case, cases[trial], precision, trial)
    for name, cases in NETWORKS.items():
        found[f'{name}, profile'] = partial(profile, cases[trial])
    config = (
        'demo/mask-rcnn_vit-micro-dinov3_sfp_digit-scenes'
        if trial
        else 'lape/mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco'
    )
    found['Mask R-CNN, whole steps'] = partial(whole_steps, config, trial)
    return found


def time_case(build: Callable[[], Case], precision: str, trial: bool) -> dict:
    """Forward and training step of all models in turns, compiled blocks among them; peak bytes; images per second."""
    dtype, tf32 = PRECISIONS[precision]
    case = build()
    add_kernels(case)
    case.models[COMPILED] = compiled(case.models[OURS], 'eager' if trial else 'inductor')
    found: dict = dict(size=case.size)
    if precision == 'float32':
        case.alike = [*case.alike, *(name for name in (COMPILED, KERNELS) if name in case.models)]
        found['difference'] = differences(case)
    case.dtype = dtype
    allow_tf32(tf32)
    for label, training in TIMES.items():
        found[label] = time_of(case, training, 1 if trial else 7, CLOCKS['wall'])
    found['peak_bytes'] = {
        name: peak_bytes(partial(train_step, case, model)) for name, model in case.models.items()
    }
    images = case.inputs[0].shape[0]
    found['images_per_second'] = {
        name: round(1e3 * images / each['median_ms'], 2)
        for name, each in found['train_step'].items()
    }
    return found


def parts_of_queries(precision: str, trial: bool) -> dict:
    """Attention's training step in the first stage of PVT, for an image of 800 x 1216, by the parts of its queries."""
    dtype, tf32 = PRECISIONS[precision]
    allow_tf32(tf32)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    queries, keys = (128, 8) if trial else (60800, 950)
    query, key, value = (
        torch.randn(1, 1, length, 64, dtype=dtype, device=device, requires_grad=True)
        for length in (queries, keys, keys)
    )

    def step(parts: int) -> None:
        read_in_parts(query, key, value, parts, 0.125).sum().backward()

    calls = {f'{parts} parts': partial(step, parts) for parts in (1, 2, 4, 8, 16, 32)}
    return dict(train_step=interleaved(calls, 1 if trial else 7))


def compiled(model: nn.Module, backend: str) -> nn.Module:
    """A copy whose blocks, or which itself, if it is a norm, ``torch.compile`` runs."""
    copy = deepcopy(model)
    with_blocks = [part for part in copy.modules() if hasattr(part, 'compile_blocks')]
    for part in with_blocks:
        part.compile_blocks = dict(backend=backend)
    if not with_blocks:
        copy.compile(backend=backend, dynamic=True)
    return copy


def profile(build: Callable[[], Case]) -> dict:
    """The kernels that take most of our training step in float32; operators where there is no GPU."""
    case = build()
    to_device(case)
    allow_tf32(False)
    on_gpu = torch.cuda.is_available()
    step = partial(train_step, case, case.models[OURS].train())
    step()
    with torch.profiler.profile() as seen:
        step()
    clock = 'self_device_time_total' if on_gpu else 'self_cpu_time_total'
    kinds = [(getattr(kind, clock) / 1e3, kind.count, kind.key) for kind in seen.key_averages()]
    kernels = [
        dict(name=name[:120], calls=calls, ms=round(taken, 3))
        for taken, calls, name in sorted(kinds, reverse=True)[:KERNELS_SHOWN]
    ]
    return dict(size=case.size, ms=round(sum(taken for taken, *_ in kinds), 3), kernels=kernels)


def whole_steps(config: str, trial: bool) -> dict:
    """Steps of a detector's or segmentor's training through the runner, with data loading, by part."""
    with tempfile.TemporaryDirectory() as folder:
        side = 64 if trial else training_step.IMAGE_SIDE
        data = build_digit_scenes(Path(folder, 'data'), num_train=4, num_val=1, image_size=side)
        warm_up, measured = (1, 1) if trial else (5, 20)
        cfg = training_step.prepared(config, data, warm_up + measured, Path(folder, 'run'))
        return training_step.measure(cfg, warm_up)


def allow_tf32(allowed: bool) -> None:
    """Whether products and convolutions of float32 are made in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def said(found: dict) -> str:
    """A line of what was measured."""
    if 'images_per_second' in found:
        each = found['images_per_second'].items()
        return ', '.join(f'{name} {value:g} images/s' for name, value in each)
    if 'train_step' in found:
        return ', '.join(
            f'{name} {each["median_ms"]:g} ms' for name, each in found['train_step'].items()
        )
    if 'kernels' in found:
        first = found['kernels'][0]
        return f'{found["ms"]:g} ms, of which {first["ms"]:g} ms {first["name"]}'
    return f'{found["step_ms"]:g} ms' if 'step_ms' in found else found['error'].splitlines()[0]


if __name__ == '__main__':
    sys.exit(main())
