"""Jobs in a real SLURM: ``make test-slurm``."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import cluster, missing

REPO = Path(__file__).resolve().parents[2]


def pytest_configure():
    if names := missing():
        raise pytest.UsageError(
            f'{", ".join(names)} not found: apt-get install slurmctld slurmd slurm-client munge'
        )


class Slurm:
    """Commands in the cluster, in a folder with data; ``mmlape`` is this clone's."""

    page = (REPO / 'docs' / 'cluster.md').read_text()

    def __init__(self, folder, environment):
        self.folder = folder
        (folder / 'bin').mkdir()
        program = folder / 'bin' / 'mmlape'
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mmlape "$@"\n')
        program.chmod(0o755)
        paths = [str(REPO), str(REPO / 'tests' / 'helpers')]
        self.environment = environment | dict(
            PATH=f'{folder}/bin{os.pathsep}{environment["PATH"]}', PYTHON=sys.executable,
            PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='',
            GPUS='2', GPUS_PER_NODE='1', CPUS_PER_TASK='1', SRUN_ARGS='--gres=none',
        )  # fmt: skip

    def __call__(self, *command, fails=False, **environ):
        """What it wrote."""
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, env=self.environment | environ,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        text = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, text[-4000:]
        return text

    def submit(self, command, *options):
        """The number of a job: the script of the page, for a node of one process each, which runs this ``command``."""
        script = re.search(r'(?ms)^```shell\n(#!.*?)^```', self.page)[1]
        script, changes = re.subn(r'CPUS_PER_TASK=.* &\n', f'{command} &\n', script)
        script, sleeps = re.subn(r'sleep \d+', 'sleep 2', script)
        assert changes == sleeps == 1
        path = self.folder / 'job.sh'
        path.write_text(script)
        one = ['--ntasks-per-node=1', '--cpus-per-task=1', '--gres=none', '--partition=cpu']
        options = ['--parsable', '--output=job-%j.log', *one, *options]
        return self('sbatch', *options, path).strip()

    def field(self, job, name):
        found = re.search(rf'\b{name}=(\S+)', self('scontrol', '--oneliner', 'show', 'job', job))
        return found[1]

    def wait(self, job, condition, seconds=120):
        """Until it holds, or the output of the job."""
        end = time.monotonic() + seconds
        while not condition():
            logs = ''.join(path.read_text() for path in self.folder.glob(f'job-{job}.log'))
            assert time.monotonic() < end, logs[-4000:]
            time.sleep(0.2)

    def wait_for_end(self, job, state='COMPLETED', restarted=False):
        ended = ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'NODE_FAIL')
        self.wait(
            job,
            lambda: (
                self.field(job, 'JobState') in ended
                and self.field(job, 'Restarts') >= str(int(restarted))
            ),
        )
        found = self.field(job, 'JobState')
        logs = ''.join(path.read_text() for path in self.folder.glob(f'job-{job}.log'))
        assert found == state, (found, logs[-4000:])


@pytest.fixture(scope='session')
def slurm(tmp_path_factory):
    """A cluster of two nodes; whatever runs in it ends with it."""
    with cluster() as environment:
        yield Slurm(tmp_path_factory.mktemp('jobs'), environment)
