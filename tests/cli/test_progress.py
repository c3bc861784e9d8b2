"""The time that a training will take, said once after the first steps, and the progress bar of `mmlape fit`."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from toy_training import toy_config

from mmlape.cli import progress
from mmlape.cli.progress import TimeHook, described, duration, show_progress


@pytest.mark.parametrize(
    ('seconds', 'said'),
    [(40, '40 seconds'), (100, '2 minutes'), (30600, '8.5 hours'), (400000, '4.6 days')],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_the_time_is_said_once_after_the_first_steps(tmp_path, monkeypatch):
    """Of steps of two seconds each: after the fourth, the first that is not typical left out."""
    clock = iter(range(0, 99, 2))
    monkeypatch.setattr(progress.time, 'monotonic', lambda: next(clock))
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)
    runner = Runner.from_cfg(toy_config(tmp_path, log_level='INFO'))
    said = []
    monkeypatch.setattr(runner.logger, 'info', said.append)
    runner.register_hook(TimeHook())
    runner.train()
    (line,) = [text for text in said if 'CPU' in str(text)]
    assert re.fullmatch(
        r'CPU \(2 threads\), \d steps of 3 images left: about \d+ seconds, without validations',
        line,
    )


@pytest.mark.parametrize(
    ('scope', 'size', 'seconds', 'named'),
    [
        ('mmdet', 9e6, 9000, 'micro-adapter'), ('mmseg', 9e6, 9000, 'micro-segmenter'),
        ('mmdet', 9e6, 900, ''), ('mmdet', 1e6, 9000, ''), ('mmpretrain', 9e6, 9000, ''),
    ],
)  # fmt: skip
def test_on_a_cpu_a_model_that_is_fast_is_named(scope, size, seconds, named):
    model = SimpleNamespace(parameters=lambda: [torch.empty(int(size), device='meta')])
    runner = SimpleNamespace(cfg=dict(default_scope=scope), model=model)
    found = described(runner, 1234, 2, seconds)
    assert '1,234 steps of 2 images' in found
    assert re.findall(r'--model (\S+)`', found) == [named] * bool(named)


@pytest.mark.parametrize('terminal', [True, False])
def test_a_bar_on_a_terminal_replaces_lines_of_steps(terminal, tmp_path, monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '100')
    screen = io.StringIO()
    screen.isatty = lambda: terminal
    monkeypatch.setattr(sys, 'stdout', screen)
    cfg = toy_config(tmp_path, log_level='INFO')
    cfg.default_hooks.logger = dict(type='LoggerHook', interval=1)
    runner = Runner.from_cfg(cfg)
    hook = Hook()
    hook.before_val = lambda _: print('index created!\nLoading it')  # one is pycocotools'
    hook.before_val_epoch = lambda _: print('index created!')
    runner.register_hook(hook)
    with show_progress(runner, bar=True):
        runner.train()
    text = screen.getvalue()
    assert ('step 12 of 12' in text) == terminal and ('Epoch(train)' in text) != terminal
    assert re.search(r'validation after step \d+: mIoU -?\d', text) and 'Epoch(val)' not in text
    assert text.count('index created!') == text.count('Loading it') * (1 if terminal else 2) > 0
    (log,) = tmp_path.glob('*/*.log')
    assert 'Epoch(train)' in log.read_text() and 'Epoch(val)' in log.read_text()
