"""Threads of OpenMP that wait for each other give their core away soon. For commands, before they import PyTorch."""

import os


def set_wait_policy() -> None:
    """Set ``GOMP_SPINCOUNT`` for this process and those that it starts, unless the environment says how threads wait.

    GNU's OpenMP, PyTorch's on Linux, lets a thread that is done spin for 300,000 rounds, milliseconds, before it
    sleeps. With more trainings than cores, the thread that all wait for often has no core, because the others spin.
    1000 rounds are what it takes by itself where one process has more threads than there are cores.
    """
    if not {'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT'} & os.environ.keys():
        os.environ['GOMP_SPINCOUNT'] = '1000'
