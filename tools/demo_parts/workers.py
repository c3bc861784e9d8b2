"""Several runs at a time: processes that stay, so that PyTorch and OpenMMLab are loaded once in each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Seconds between two looks at whether the processes are alive.
PATIENCE = 1.0


class Report(NamedTuple):
    """What a process says about its job: ``kind`` is ``'part'`` (meanwhile), ``'result'`` or ``'error'`` (text)."""

    kind: str
    job: int
    value: Any


def run_jobs(
    function: Callable[[Any, Callable[[Any], None]], Any], jobs: list[Any], workers: int
) -> Iterator[Report]:
    """Call ``function(job, report)`` for every job, ``workers`` at a time, in order; yield what is said.

    Closing the generator, or an exception in who reads it (Ctrl-C), ends the processes.

    Raises:
        RuntimeError: A process ended on its own.
    """
    context = multiprocessing.get_context('spawn')
    waiting, said = context.Queue(), context.Queue()
    for number, job in enumerate(jobs):
        waiting.put((number, job))
    processes = [
        context.Process(target=_work, args=(function, waiting, said), daemon=True)
        for _ in range(min(workers, len(jobs)))
    ]
    for process in processes:
        waiting.put(None)
        process.start()
    try:
        left = len(jobs)
        while left:
            try:
                report = said.get(timeout=PATIENCE)
            except queue.Empty:
                _check(processes)
                continue
            left -= report.kind != 'part'
            yield report
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _check(processes: list[multiprocessing.Process]) -> None:
    for process in processes:
        if process.exitcode:
            raise RuntimeError(f'a worker process ended with exit code {process.exitcode}')


def _work(function: Callable, waiting: Any, said: Any) -> None:
    """Do jobs until None comes."""
    # Ctrl-C reaches every process of the terminal; the first one answers it and ends these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number, job in iter(waiting.get, None):
        try:
            result = function(
                job, lambda part, number=number: said.put(Report('part', number, part))
            )
        except Exception:
            said.put(Report('error', number, traceback.format_exc()))
        else:
            said.put(Report('result', number, result))


def cores() -> int:
    """How many there are for this process."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
