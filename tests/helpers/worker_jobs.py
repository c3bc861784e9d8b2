"""Jobs for worker processes, which import them by name."""

import os
import signal
import time
from collections.abc import Callable

KILLED = 99
AT_IMPORT = signal.getsignal(signal.SIGINT)


def square(job: int, report: Callable[[float], None]) -> int:
    """The square of ``job``; a negative one fails, ``KILLED`` ends its process."""
    report(0.5)
    if job < 0:
        raise ValueError(f'{job} is negative')
    if job == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    return job * job


def handler_at_import(job: int, report: Callable[[float], None]) -> int:
    """What a worker does at Ctrl-C while it still imports."""
    return int(AT_IMPORT)


def linger(job: int, report: Callable[[float], None]) -> None:
    """Say that it has begun, and stay, also at SIGTERM, as a training in a SLURM job."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(0.5)
    time.sleep(600)
