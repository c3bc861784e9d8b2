"""A training in a SLURM job saves when SLURM announces its end, and ends as an uninterrupted one."""

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoint_difference import difference
from mmengine.hooks import Hook
from toy_training import seen_by, toy_config, toy_run

from mmlape import preemption
from mmlape.registry import HOOKS
from mmlape.training import save_at_signal


@HOOKS.register_module(force=True)
class Signal(Hook):
    """SLURM, which signals the data workers too."""

    def __init__(self, at, number):
        self.at, self.number = at, number

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.at:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, self.number)
            os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True)
def job(monkeypatch):
    monkeypatch.setenv('SLURM_JOB_ID', '1')
    before = {number: signal.getsignal(number) for number in preemption.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def last(folder):
    path = Path((folder / 'last_checkpoint').read_text())
    return path.name, torch.load(path, weights_only=False)


ITERATIONS = dict(checkpoint=dict(interval=8))
EPOCHS = dict(by_epoch=True, checkpoint=dict(by_epoch=True, interval=2))


@pytest.mark.parametrize(
    ('options', 'at'),
    [
        (ITERATIONS, 4),
        (ITERATIONS, 3),  # before a validation
        (EPOCHS, 5),
        (EPOCHS, 3),  # the last step of an epoch
        (EPOCHS | dict(loader=dict(num_workers=1)), 5),
    ],
)
def test_it_ends_as_an_uninterrupted_one(tmp_path, options, at):
    whole = toy_run(toy_config(tmp_path / 'whole', **options))
    cfg = toy_config(tmp_path / 'run', seen=dict(stop_at=at + 2), **options)
    cfg.custom_hooks.append(dict(type='mmlape.Signal', at=at, number=signal.SIGTERM))
    first = toy_run(cfg)
    name, checkpoint = last(tmp_path / 'run')
    assert (name, checkpoint['meta']['iter']) == ('interrupted.pth', at + 1)
    second = toy_run(toy_config(tmp_path / 'run', **options), tmp_path / 'run' / name)
    assert min(seen_by(second)) == at + 1
    assert {**seen_by(first), **seen_by(second)} == seen_by(whole)
    assert difference(last(tmp_path / 'whole')[1], last(tmp_path / 'run')[1]) is None
    names = [sorted(p.name for p in (tmp_path / n).glob('*.pth*')) for n in ('whole', 'run')]
    assert names[0] == names[1]


def test_it_saves_once_and_only_what_costs_less_than_it_saves():
    saved, said = [], []
    hook = save_at_signal.SaveAtSignal(saved.append)
    loops = dict(_train_loop=None, _val_loop=None)
    runner = SimpleNamespace(
        iter=0, logger=SimpleNamespace(info=said.append),
        optim_wrapper=SimpleNamespace(_accumulative_counts=2), **loops,
    )  # fmt: skip
    hook.before_train(runner)
    os.kill(os.getpid(), signal.SIGUSR1)
    for runner.iter in range(4):  # gradients are accumulated over two steps
        hook.after_train_iter(runner, runner.iter)
        assert len(saved) == (runner.iter > 0)
    assert len(said) == 1 and said[0].startswith('SIGUSR1: 0 s since the last checkpoint, saving')
    hook._cost = 100.0
    os.kill(os.getpid(), signal.SIGTERM)
    hook.after_train_iter(runner, 0)
    assert len(saved) == 1 and 'not saving' in said[1]


def test_outside_a_job_signals_keep_their_meaning(monkeypatch):
    monkeypatch.delenv('SLURM_JOB_ID')
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    preemption.listen()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
