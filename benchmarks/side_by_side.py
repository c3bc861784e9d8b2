"""Times of two or more ways to do the same thing: in one process, interleaved, medians and ratios, one JSON record."""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import torch


def interleaved(
    candidates: dict[str, Callable[[], object]],
    repeats: int = 9,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Time every candidate ``repeats`` times, in turns, so that what else the machine does hits all alike.

    Args:
        candidates: Name to function. The first is what the others are compared with.
        repeats: Timed calls of each.
        warm_up: Calls of each before.
        clock: What tells the time in seconds; ``time.process_time`` leaves out what other processes took.

    Returns:
        For each name: ``median_ms``, ``min_ms`` and ``ratio``, the median over turns of its time to the first one's.
    """
    for _ in range(warm_up):
        for call in candidates.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            _synchronise()
            start = clock()
            call()
            _synchronise()
            times[name].append(1e3 * (clock() - start))
    first = times[next(iter(candidates))]
    return {
        name: {
            'median_ms': round(statistics.median(taken), 4),
            'min_ms': round(min(taken), 4),
            'ratio': round(statistics.median(a / b for a, b in zip(taken, first)), 4),
        }
        for name, taken in times.items()
    }


def saved_bytes(call: Callable[[], object]) -> int:
    """Bytes that autograd keeps for the backward pass of ``call``; each storage is counted once."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outcome = call()
    del outcome
    return sum(kept.values())


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that PyTorch held at any time of ``call`` beyond what it held before."""
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
    # by time alone: what happens in the same nanosecond keeps its order
    return max(itertools.accumulate(change for _, change in sorted(changes, key=itemgetter(0))))


def write_record(path: Path, results: dict) -> None:
    """Write results with the machine, the versions, the threads and the load."""
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    record = {
        'machine': {
            'device': cuda or 'CPU',
            'processor': platform.processor() or platform.machine(),
            'cpus': os.cpu_count(),
            'threads': torch.get_num_threads(),
            'load_1_min': round(os.getloadavg()[0], 2),
            'python': platform.python_version(),
            'torch': torch.__version__,
            'date': time.strftime('%Y-%m-%d'),
        },
        'results': results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    print(json.dumps(record, indent=2))


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
