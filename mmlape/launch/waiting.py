"""Threads that wait for each other let others have the core: importing this tells OpenMP, before PyTorch asks.

GNU's OpenMP, PyTorch's on Linux, lets a thread that is done spin for 300,000 rounds, milliseconds, before it sleeps.
With more trainings than cores, the thread that all wait for often has no core, because the others spin. 1000 rounds are
what it takes by itself where one process has more threads than there are cores. What the environment says is kept.
"""

import os

if not {'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT'} & os.environ.keys():
    os.environ['GOMP_SPINCOUNT'] = '1000'
