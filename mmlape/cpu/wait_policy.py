"""OpenMP's wait policy, for commands before PyTorch is imported."""

import os
from contextlib import suppress


def set_wait_policy() -> None:
    """Import PyTorch with ``GOMP_SPINCOUNT=1000``, unless the environment says how OpenMP's threads wait.

    GNU's OpenMP, PyTorch's on Linux, lets a thread that has finished spin for 300,000 rounds, milliseconds, before it
    sleeps. With more trainings than cores, the thread that all wait for often has no core, because the others spin.
    1000 rounds is OpenMP's own default where one process has more threads than cores. It reads the variable when it is
    loaded; afterwards the variable is removed, so that other programs started from here do not inherit it.
    """
    if {'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT'} & os.environ.keys():
        return
    os.environ['GOMP_SPINCOUNT'] = '1000'
    with suppress(ImportError):  # the command itself says what is missing
        import torch  # noqa: F401
    del os.environ['GOMP_SPINCOUNT']
