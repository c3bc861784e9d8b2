"""Programs that a command starts end with it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from own_data import coco, image, names
from tool_runs import REPO

from mmlape.cli import run_child


def processes(mark):
    """Running processes whose command line holds a text."""
    found = []
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            line = path.read_bytes().decode(errors='replace')
            state = (path.parent / 'stat').read_text().rpartition(')')[2].split()[0]
        except OSError:  # it has ended
            continue
        if mark in line and state != 'Z':
            found.append(int(path.parent.name))
    return found


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_the_result_is_that_of_the_program():
    assert run_child([sys.executable, '-c', 'raise SystemExit(3)']) == 3


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_program_ends_with_the_one_that_started_it(number, tmp_path):
    """Also one that goes on at SIGTERM, as a training in a SLURM job."""
    mark = str(tmp_path / 'mark')
    stays = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'
    child = [sys.executable, '-c', stays, mark]
    # A shell that runs the tests in the background lets them ignore SIGINT.
    code = 'import signal; signal.signal(signal.SIGINT, signal.default_int_handler); '
    code += f'from mmlape.cli import run_child; run_child({child!r})'
    parent = subprocess.Popen([sys.executable, '-c', code], stderr=subprocess.DEVNULL)
    assert wait_for(lambda: len(processes(mark)) == 2)
    parent.send_signal(number)
    parent.wait(60)
    assert wait_for(lambda: not processes(mark), 30)


@pytest.mark.slow
def test_a_killed_fit_leaves_no_process(tmp_path):
    """Neither the training nor its data workers, which go on at SLURM's SIGTERM."""
    data, out = tmp_path / 'data', tmp_path / 'out'
    for name in names(6):
        image(data / 'images' / name)
    coco(data / 'train.json', names(6), masks=True)
    command = [
        sys.executable,
        str(REPO / 'tools/fit.py'),
        str(data),
        '--out',
        str(out),
        '--model',
        'micro-adapter',
    ]
    command += ['--epochs', '1000', '--size', '32', '--workers', '2']
    with (tmp_path / 'log').open('w') as log:
        fit = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=tmp_path,
            env=dict(os.environ, OMP_NUM_THREADS='1', SLURM_JOB_ID='1'),
        )  # fmt: skip
    assert wait_for(lambda: 'Epoch(train)' in (tmp_path / 'log').read_text(), 300), (
        tmp_path / 'log'
    ).read_text()
    assert len(processes(str(out))) >= 4  # fit, the training, two workers
    fit.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        fit.wait(3)
    fit.kill()
    fit.wait(60)
    assert wait_for(lambda: not processes(str(out)), 60), processes(str(out))
