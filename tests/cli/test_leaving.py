"""Leaving the group of processes at the end of a run."""

import os
import subprocess
import sys

import pytest
from ports import free_port

# A group of one process, with a wrapped model in a circle of references, as a runner is.
SCRIPT = """
import psutil
import torch
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmlape.cli import joined

class Runner:
    def __init__(self):
        self.itself = self
        self.model = MMDistributedDataParallel(torch.nn.Linear(2, 2))
        torch.distributed.all_reduce(torch.ones(3))

threads = psutil.Process().num_threads
before = threads()
with joined(Config(dict(launcher='pytorch'))):
    Runner()
    inside = threads()
print('threads', before, inside, threads())
"""


@pytest.mark.slow
def test_no_thread_outlives_the_group():
    """A thread of the group that still runs while Python ends would now and then abort the process."""
    world = dict(RANK='0', WORLD_SIZE='1', LOCAL_RANK='0', MASTER_ADDR='127.0.0.1')
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT],
        env=dict(os.environ, CUDA_VISIBLE_DEVICES='', MASTER_PORT=str(free_port()), **world),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, inside, after = map(int, done.stdout.split('threads')[1].split())
    assert inside > before
    assert after == before
