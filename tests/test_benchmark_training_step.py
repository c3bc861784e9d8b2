"""benchmarks/training_step.py: every moment counts once, for the right part; a record is gone on with."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
from mmengine.hooks import Hook

from benchmarks import training_step
from mmlape.datasets import build_digit_scenes


class Clock:
    """A clock that tells what it is set to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def __deepcopy__(self, memo):
        """Configs are copied; there is one clock."""
        return self

    def takes(self, seconds):
        self.now += seconds


def test_each_moment_counts_for_the_innermost_call():
    clock = Clock()
    ledger = training_step.Ledger(clock)
    inner = SimpleNamespace(forward=lambda: clock.takes(5))

    def forward():
        clock.takes(1)
        inner.forward()
        clock.takes(2)

    outer = SimpleNamespace(forward=forward)
    ledger.watch(inner, 'forward', 'backbone')
    ledger.watch(outer, 'forward', 'heads')
    for _ in range(2):
        clock.takes(0.5)
        outer.forward()
        found = ledger.close()
        assert {part: taken for part, taken in found.items() if taken} == {
            'heads': 3,
            'backbone': 5,
            'rest': 0.5,
        }


def test_time_counts_when_a_call_fails():
    clock = Clock()
    ledger = training_step.Ledger(clock)

    def fail():
        clock.takes(1)
        raise ValueError('no step')

    owner = SimpleNamespace(step=fail)
    ledger.watch(owner, 'step', 'optimizer')
    with pytest.raises(ValueError, match='no step'):
        owner.step()
    clock.takes(2)
    found = ledger.close()
    assert (found['optimizer'], found['rest']) == (1, 2)


class SlowHook(Hook):
    """Takes a minute of the clock in every step."""

    def __init__(self, clock):
        self.clock = clock

    def after_train_iter(self, *args, **kwargs):
        self.clock.takes(60)


MICRO = {
    'mask-rcnn': 'demo/mask-rcnn_vit-micro-dinov3_sfp_digit-scenes',
    'segmenter': 'experiments/segmenter_vit-micro_mask_digit-cells',
}


@pytest.mark.parametrize('name', MICRO)
def test_a_step_is_divided(name, tmp_path, monkeypatch):
    """All parts take some time, and what a slow hook takes is the hooks'."""
    clock, start = Clock(), time.process_time()
    monkeypatch.setattr(training_step, 'seconds_now', lambda: clock() + time.process_time() - start)
    monkeypatch.setitem(training_step.CONFIGS, name, MICRO[name])
    scenes = build_digit_scenes(tmp_path / 'data', num_train=2, num_val=1)
    cfg = training_step.prepared(name, scenes, 3, tmp_path / 'work')
    cfg.train_dataloader.batch_size = 2
    cfg.custom_hooks = [dict(type=SlowHook, clock=clock)]
    found = training_step.measure(cfg, warm_up=1)
    parts = found['parts_ms']
    assert (found['images_per_step'], found['steps']) == (2, 2)
    assert all(parts[part] > 0 for part in parts if part != 'neck' or name == 'mask-rcnn')
    assert 60_000 <= parts['hooks'] < 62_000 <= found['step_ms'] + 2000
    assert sum(parts.values()) == pytest.approx(found['step_ms'], rel=0.05)


def test_a_record_is_gone_on_with(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(cfg, warm_up):
        measured.append(cfg.experiment_name)
        parts = dict.fromkeys(training_step.PARTS, 1.0)
        return dict(images_per_step=2, steps=5, parts_ms=parts, step_ms=9.0)

    monkeypatch.setattr(training_step, 'measure', measure)
    monkeypatch.setattr(training_step, 'build_digit_scenes', lambda root, **options: root)
    command = ['training_step', '--out', str(tmp_path / 'record.json')]
    for more in (['--only', 'segmenter'], []):
        monkeypatch.setattr(sys, 'argv', [*command, *more])
        training_step.main()
    assert measured == ['step-segmenter', 'step-mask-rcnn', 'step-upernet']
    assert set(json.loads((tmp_path / 'record.json').read_text())['results']) == set(
        training_step.CONFIGS
    )
    assert '| segmenter, 2 images | 0.01 s | 11.1 % |' in capsys.readouterr().out
