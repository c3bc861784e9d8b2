"""Programs that a command starts, and that end when it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1  # an option of Linux's prctl


def run_child(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` of a program that gets SIGTERM when this process ends, however it ends (Linux; elsewhere it
    goes on). Call it in the main thread: the kernel sends the signal when the thread ends.
    """
    return subprocess.run(command, preexec_fn=_ends_with(os.getpid()), **options)


def _ends_with(parent: int) -> Callable[[], None] | None:
    if sys.platform != 'linux':
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which little is safe

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    return ask
