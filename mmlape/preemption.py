"""The signals by which SLURM announces that it will stop a job. No slow imports."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

# Sent before a job is preempted, requeued, cancelled or out of time; the other one is sent where a job asks for it.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class _State:
    asked: str | None = None


def in_slurm_job() -> bool:
    """Whether SLURM has started this process, or the shell around it."""
    return 'SLURM_JOB_ID' in os.environ


def listen() -> None:
    """In a SLURM job, remember the signals instead of ending the process.

    Nothing ends at SIGTERM: SLURM requeues a preempted job only if it still runs when its grace time is over. It kills
    the job then.
    """
    if in_slurm_job() and threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, _remember)


def asked() -> str | None:
    """Return the name of the last signal, once; None without one."""
    name, _State.asked = _State.asked, None
    return name


def ignore() -> None:
    """Ignore the signals, in a data worker: SLURM sends them to every process of a job."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _remember(number: int, frame: FrameType | None) -> None:
    _State.asked = signal.Signals(number).name
