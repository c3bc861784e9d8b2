"""Programs that a command starts, and that end when it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from .program import STOPPED

_GRACE = 15  # seconds: Python takes some to end
_PR_SET_PDEATHSIG = 1  # an option of Linux's prctl


def run_child(command: Sequence[str]) -> int:
    """Run a program, and return its exit status. It is killed when this process ends, however it ends (Linux;
    elsewhere it goes on): in a SLURM job, a training survives SIGTERM. Call it in the main thread: the kernel kills
    the program when the thread ends.

    A terminal sends Ctrl-C to both, and the program says how to continue, so it has some seconds to end.
    """
    with subprocess.Popen(command, preexec_fn=_ends_with(os.getpid())) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            try:
                code = process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            if code == STOPPED:
                sys.exit(code)
            raise


def _ends_with(parent: int) -> Callable[[], None] | None:
    if sys.platform != 'linux':
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which little is safe

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    return ask
