"""A pool of worker processes; each loads PyTorch and OpenMMLab once."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

# Seconds between checks that the processes are alive.
PATIENCE = 1.0


class Report(NamedTuple):
    """A message of a process about its job: ``kind`` is ``'part'`` (meanwhile), ``'result'`` or ``'error'`` (text)."""

    kind: str
    job: int
    value: Any


def run_jobs(
    function: Callable[[Any, Callable[[Any], None]], Any], jobs: list[Any], workers: int
) -> Generator[Report, None, None]:
    """Call ``function(job, report)`` for every job, ``workers`` at a time, in order; yield the reports.

    Closing the generator, or an exception in its consumer (Ctrl-C), ends the processes.

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
    # Ctrl-C reaches every process of the terminal; the parent handles it and ends the workers. What is ignored at a
    # start is so from the first line on.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for process in processes:
        waiting.put(None)
        process.start()
    signal.signal(signal.SIGINT, handler)
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
            process.kill()  # in a SLURM job, a training remembers SIGTERM and goes on
        for process in processes:
            process.join()


def _check(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode:
            raise RuntimeError(f'a worker process ended with exit code {process.exitcode}')


def _work(function: Callable, waiting: Any, said: Any) -> None:
    """Do jobs until None comes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number, job in iter(waiting.get, None):
        try:
            result = function(
                job, lambda part, number=number: said.put(Report('part', number, part))
            )
        except Exception:
            said.put(Report('error', number, traceback.format_exc()))
        else:
            said.put(Report('result', number, result))


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers."""
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def cores() -> int:
    """Number of cores available to this process."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
