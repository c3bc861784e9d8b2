"""A job for worker processes, which import it by name."""

import os
import signal
import time
from collections.abc import Callable

KILLED, ENDLESS = 99, 98


def square(job: int, report: Callable[[float], None]) -> int:
    """The square of ``job``; a negative one fails, ``KILLED`` ends its process, ``ENDLESS`` does not come back."""
    report(0.5)
    if job < 0:
        raise ValueError(f'{job} is negative')
    if job == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if job == ENDLESS:
        time.sleep(600)
    return job * job
