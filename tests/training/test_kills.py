"""Trainings that are killed (SIGKILL) end as if they had not been; helpers/kill_runs.py does it as often as asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SECONDS_ALONE = 30  # that a process may go on for when another one is gone


def killed(kills, seed, *cases):
    """What happened, per case; a run that cannot go on, or ends otherwise, is an error of the program."""
    done = subprocess.run(
        [sys.executable, str(TESTS / 'helpers' / 'kill_runs.py'), str(kills), str(seed), *cases],
        env=dict(os.environ, OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES=''),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    for report in reports:
        assert sum(report['kills'].values()) >= kills
        assert all(seconds < SECONDS_ALONE for seconds in report['seconds_alone'])
    return reports


@pytest.mark.slow
def test_a_killed_training_ends_as_an_uninterrupted_one():
    (report,) = killed(6, 2, 'segmentation, 1 process, iterations')
    assert report['chains'] >= 2 and len(report['lost']) > report['chains']


@pytest.mark.slow
def test_four_trainings_are_killed_at_many_moments():
    reports = killed(15, 1)
    assert len(reports) == 4
    assert sum(report['in_save'] for report in reports) >= 5
    assert len(reports[2]['seconds_alone'] + reports[3]['seconds_alone']) >= 3
