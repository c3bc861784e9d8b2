"""Interleaved timing of alternatives in one process: medians, ratios, one JSON record."""

from __future__ import annotations

import itertools
import json
import os
import platform
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from unittest import mock

import torch

from mmlape.runtime.private import storage_address

CLONE = Path(__file__).resolve().parents[1]
CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}


def interleaved(
    candidates: dict[str, Callable[[], object]],
    repeats: int = 9,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Time every candidate ``repeats`` times, in turns, so that other load affects all equally.

    Args:
        candidates: Functions by name. The others are compared with the first.
        repeats: Timed calls of each.
        warm_up: Calls of each before.
        clock: Returns seconds; ``time.process_time`` excludes other processes.

    Returns:
        The result of :func:`compared`.
    """
    timed = {name: partial(milliseconds, call, clock) for name, call in candidates.items()}
    return compared(in_turns(timed, repeats, warm_up))


def milliseconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Milliseconds of one call."""
    _synchronise()
    start = clock()
    call()
    _synchronise()
    return 1e3 * (clock() - start)


def in_turns(
    candidates: dict[str, Callable[[], float]], repeats: int, warm_up: int
) -> dict[str, list[float]]:
    """Results of ``repeats`` calls of each of ``candidates``, in turns, after ``warm_up`` turns."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warm_up + repeats):
        for name, call in candidates.items():
            value = call()
            if turn >= warm_up:
                found[name].append(value)
    return found


def compared(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Statistics of times in milliseconds, taken in turns.

    Returns:
        For each name: ``median_ms``, ``iqr_ms`` (interquartile range), ``min_ms``, and ``ratio``, the median over turns
        of its time to the first one's.
    """
    first = times[next(iter(times))]
    return {
        name: {
            'median_ms': round(statistics.median(taken), 4),
            'iqr_ms': round(_interquartile_range(taken), 4),
            'min_ms': round(min(taken), 4),
            'ratio': round(statistics.median(a / b for a, b in zip(taken, first)), 4),
        }
        for name, taken in times.items()
    }


@contextmanager
def taken_for_eager(but: str = '') -> Iterator[None]:
    """Let our modules, all but one, take the branches of an ordinary step, although a mode counts or fakes."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith('mmlape.') and name != but and hasattr(module, 'is_eager'):
                stack.enter_context(mock.patch.object(module, 'is_eager', return_value=True))
        yield


def saved_bytes(call: Callable[[], object]) -> int:
    """Bytes that autograd saves for the backward pass of ``call``; each storage is counted once."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[storage_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outcome = call()
    del outcome
    return sum(kept.values())


def peak_bytes(call: Callable[[], object]) -> int:
    """Peak bytes that PyTorch allocates during ``call``, beyond those before it."""
    if torch.cuda.is_available():
        _synchronise()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        _synchronise()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == '[memory]'
    ]
    # stable: events of the same nanosecond keep their order
    return max(itertools.accumulate(change for _, change in sorted(changes, key=itemgetter(0))))


# Otherwise every turn has page faults for its buffers, depending on the previous candidate. Loaded by file, because the
# worker of against.py has another revision's mmlape.
keep_freed_memory = runpy.run_path(str(CLONE / 'mmlape/cpu/memory.py'))['keep_freed_memory']


def write_record(path: Path, results: dict, show: bool = True) -> None:
    """Write results with the machine, versions, commit, threads and load; ``show`` prints them, too."""
    record = {'machine': machine(), 'results': results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    if show:
        print(json.dumps(record, indent=2))


def machine() -> dict:
    """The machine, versions, commit, threads and load."""
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        'device': cuda or 'CPU',
        'processor': _processor(),
        'instructions': torch.backends.cpu.get_cpu_capability(),
        'cpus': os.cpu_count(),
        'threads': torch.get_num_threads(),
        'load_1_min': round(os.getloadavg()[0], 2),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'versions': versions(),
        'commit': revision_of(CLONE),
        'date': time.strftime('%Y-%m-%d'),
    }


def _processor() -> str:
    """The processor's model as Linux names it; elsewhere what Python knows."""
    info = Path('/proc/cpuinfo')
    lines = info.read_text(encoding='utf-8').splitlines() if info.is_file() else []
    models = (line.partition(': ')[2] for line in lines if line.startswith('model name'))
    return next(models, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Versions of the measured packages."""
    packages = {d.metadata['Name']: d.version for d in metadata.distributions()}
    named = ('torch', 'numpy', 'timm')
    stacks = ('mmengine', 'mmcv', 'mmdetection', 'mmdet', 'mmsegmentation')
    names = [*named, *stacks, *(f'onedl-{name}' for name in stacks)]
    return {name: packages[name] for name in names if name in packages}


def commit_of(revision: str) -> str | None:
    """The full hash of a commit."""
    command = [
        'git',
        'rev-parse',
        '--verify',
        '--quiet',
        '--end-of-options',
        f'{revision}^{{commit}}',
    ]
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def revision_of(source: Path | str) -> str | None:
    """Name in the record: a commit, with ``-dirty`` if files differ, or 'a folder'."""
    folder = Path(source)
    if not folder.is_dir():
        return commit_of(str(source))
    asked = (['rev-parse', '--show-toplevel'], ['describe', '--always', '--abbrev=40', '--dirty'])
    top, name = (
        subprocess.run(['git', *command], cwd=folder, capture_output=True, text=True).stdout.strip()
        for command in asked
    )
    return name if name and Path(top).resolve() == folder.resolve() else 'a folder'


def _interquartile_range(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method='inclusive')
    return high - low


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
