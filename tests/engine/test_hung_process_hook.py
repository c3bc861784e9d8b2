"""A process that hangs is named, and the others end; one that works is left alone."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from toy_training import toy_config, toy_run

from mmlape.engine import hung_process_hook
from mmlape.engine.watch import Note, hung_processes
from mmlape.registry import HOOKS

TESTS = Path(__file__).resolve().parents[1]
STEP, LOADING, NEXT = (4, 2), (4, 3), (5, 2)


def note(place, stands=10.0, **rest):
    return Note(place=place, stands=stands, is_slow=rest.pop('is_slow', False), **rest)


@pytest.mark.parametrize(
    ('notes', 'hung'),
    [
        ([note(NEXT, waits=True), note(LOADING), note(NEXT)], [1]),
        ([note(LOADING), note(NEXT), note(LOADING)], [0, 2]),
        # In one place: those that visibly wait do so for the others.
        ([note(STEP, waits=True), note(STEP)], [1]),
        # One that waits, and others wait for it.
        ([note(STEP, waits=True), note(NEXT, waits=True)], [0]),
        ([note(STEP, has_ended=True, stands=0), note(STEP), note(NEXT)], [1]),
        # All alike, or one moves.
        ([note(STEP), note(STEP)], []),
        ([note(STEP, waits=True), note(STEP, waits=True)], []),
        ([note(NEXT), note(LOADING, stands=4)], []),
        ([note(NEXT, stands=4), note(LOADING)], []),
        # Validation may take longer, also while others go on.
        ([note(NEXT), note(LOADING, is_slow=True)], []),
        ([note(NEXT), note(LOADING, is_slow=True, stands=20)], [1]),
    ],
)
def test_who_is_waited_for(notes, hung):
    assert hung_processes(notes, limit=5, slow_limit=15) == hung


@HOOKS.register_module(force=True)
class Stands(Hook):
    """Waits in an iteration until the watch has said something."""

    said = threading.Event()

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 5:
            assert self.said.wait(60)


def hung_hook(runner):
    return next(
        hook for hook in runner.hooks if isinstance(hook, hung_process_hook.HungProcessHook)
    )


def watched_config(folder, **options):
    cfg = toy_config(folder, **options)
    cfg.default_hooks.hung = dict(type='mmlape.HungProcessHook', timeout=0.5)
    return cfg


def test_a_single_process_is_told_where_it_stands(tmp_path, monkeypatch):
    texts = []
    monkeypatch.setattr(
        hung_process_hook, '_speak', lambda say, text: (texts.append(text), Stands.said.set())
    )
    Stands.said.clear()
    cfg = watched_config(tmp_path)
    cfg.custom_hooks.append(dict(type='mmlape.Stands', priority='LOWEST'))
    runner = toy_run(cfg)
    assert runner.iter == 12 and hung_hook(runner)._watch is None
    assert len(texts) == 1
    lines = texts[0].splitlines()
    assert lines[0] == 'process 0 of 1 has not moved for 1 s:'
    assert f'stands (pid {os.getpid()} on ' in lines[1] and 'iteration 6, forward pass' in lines[1]
    assert any('in before_train_iter' in line for line in lines)


def test_nobody_watches_a_training_that_has_failed(tmp_path):
    watch = hung_hook(toy_run(watched_config(tmp_path, seen=dict(stop_at=3))))._watch
    for thread in watch._threads:
        thread.join(30)
        assert not thread.is_alive()


def test_who_only_validates_needs_no_data_of_a_training(tmp_path):
    cfg = watched_config(tmp_path)
    cfg.train_dataloader.dataset, cfg.custom_hooks = dict(type='NoSuchData'), []
    cfg.default_hooks.checkpoint = None
    runner = RUNNERS.build(cfg)
    assert runner.val().keys() == {'mIoU'}
    assert hung_hook(runner)._watch is None


# Seconds until the first process has ended; and a part of what it says.
LIMIT, SLOW_LIMIT = 4, 9
HUNG = {
    'data': (LIMIT, 'after iteration 5, loading data or in a hook, for '),
    'forward': (LIMIT, 'iteration 6, forward pass, for '),
    'validation': (SLOW_LIMIT, 'after iteration 8, validation, for '),
    'saving': (SLOW_LIMIT, 'saving a checkpoint, for '),
    'stopped': (LIMIT, '; no answer for '),
    'stopped first': (SLOW_LIMIT, '; no answer for '),
}


@pytest.mark.slow
def test_the_process_that_hangs_is_named_and_the_training_goes_on():
    done = subprocess.run(
        [sys.executable, str(TESTS / 'hung_runs.py')],
        env=dict(os.environ, OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES=''),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    reports = {report.pop('kind'): report for report in reports}
    slow = reports.pop('slow')
    assert slow['codes'] == [0, 0] and 'process 1 of 2 works (pid ' in slow['log']
    assert reports.keys() == HUNG.keys()
    for kind, report in reports.items():
        seconds, doing = HUNG[kind]
        assert report['code'] == 1, (kind, report)
        assert report['seconds'] < 3 * seconds  # 1.1 on an idle machine
        rank = int(kind not in ('saving', 'stopped first'))
        says = [line for line in report['log'].splitlines() if f'process {rank} of 2 hangs' in line]
        assert len(says) == 1 and f'(pid {report["hung"]} on ' in says[0] and doing in says[0], says
        assert f'process {1 - rank} of 2 hangs' not in report['log']
        assert report['resumed'] == [0, 0] and report['goes_on']
