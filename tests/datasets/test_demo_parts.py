"""The demo's bookkeeping: what is kept, what is trusted after an interruption, what is said."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'tools'))

import demo

from mmlape.research.demo import run
from mmlape.research.demo.catalogue import TASKS
from mmlape.research.demo.console import Console, Screen
from mmlape.research.demo.state import State, last_checkpoint
from mmlape.research.demo.workers import Report

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_without_a_choice_is_the_detector_and_the_segmenter():
    assert demo.parse_arguments([]).task == ['mask_rcnn', 'segmenter']
    assert demo.parse_arguments(['--model', 'retinanet_dtn_pvt']).task == ['retinanet_dtn_pvt']
    assert set(demo.MODELS) == set(TASKS)
    for task in TASKS.values():
        assert (ROOT / 'configs/demo' / task.config).is_file()


def test_make_passes_the_model_on():
    said = make('-n', 'demo', 'MODEL=retinanet_dtn_pvt').strip()
    assert said.endswith('tools/demo.py --model retinanet_dtn_pvt')
    assert all(name in make('help') for name in demo.MODELS)


def make(*arguments: str) -> str:
    """What make prints, also where the tests themselves run under one."""
    environment = {k: v for k, v in os.environ.items() if k not in ('MAKEFLAGS', 'MAKELEVEL')}
    command = ['make', '--no-print-directory', *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def write_checkpoint(path: Path) -> bytes:
    torch.save({'weight': torch.arange(1000.0)}, path)
    return path.read_bytes()


def test_the_newest_whole_checkpoint_is_taken(tmp_path):
    write_checkpoint(tmp_path / 'iter_9.pth')
    content = write_checkpoint(tmp_path / 'iter_10.pth')
    (tmp_path / 'iter_11.pth').write_bytes(content[:700])
    said = []
    assert last_checkpoint(tmp_path, said.append) == (tmp_path / 'iter_10.pth', 10)
    assert len(said) == 1
    assert 'iter_11.pth' in said[0]


def test_results_are_kept_for_the_same_settings_only(tmp_path):
    folder, said = tmp_path / 'task', []
    State(folder, 'a', said.append).put(untrained={'mIoU': 0.1})
    assert State(folder, 'a', said.append).get('untrained') == {'mIoU': 0.1}
    assert not said
    (folder / 'iter_10.pth').touch()
    assert State(folder, 'b', said.append).get('untrained') is None
    assert len(said) == 1
    assert not list(folder.glob('*.pth')), 'weights of other settings must not be resumed from'


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr('mmlape.research.demo.console.time.monotonic', lambda: self.now)


@pytest.fixture
def timed(monkeypatch):
    return Clock(monkeypatch)


def console(monkeypatch, steps):
    stream = io.StringIO()
    monkeypatch.setattr(sys, 'stdout', stream)
    return Console(steps), stream


def test_time_left_follows_the_pace_of_this_machine(monkeypatch, timed):
    screen, stream = console(monkeypatch, {'first': 100, 'second': 50})
    screen.begin('first')
    assert 'about 2:30 left' in stream.getvalue()
    timed.now += 100  # half as fast as expected: 100 s for half of the first step
    screen.progress(0.5)
    assert 'about 3:20 left' in stream.getvalue().splitlines()[-1]
    timed.now += 100
    screen.end('done')
    screen.begin('second')
    assert 'about 1:40 left' in stream.getvalue().splitlines()[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize('columns', [120, 50])
def test_a_terminal_has_one_line_for_all(monkeypatch, timed, columns):
    monkeypatch.setenv('COLUMNS', str(columns))
    stream = Terminal()
    monkeypatch.setattr(sys, 'stdout', stream)
    screen = Screen()
    first, second = Console({'first': 100}, screen), Console({'second': 100, 'more': 60}, screen)
    first.begin('first')
    second.begin('second')
    timed.now += 50
    first.progress(0.5, 'loss 1.5')
    timed.now += 30
    second.progress(0.25, 'loss 2.5')
    line = '  about 7:12 left in all  |  first   50%  loss 1.5  |  second   25%  loss 2.5'
    assert stream.getvalue().split('\r\033[K')[-1] == line[: columns - 1]
    second.say('something')
    assert stream.getvalue().endswith('\r\033[Ksomething\n')


def test_a_model_that_fails_ends_the_demo_with_its_reason(tmp_path, monkeypatch, capsys):
    options = ['--quick', f'--work-dir={tmp_path}/out', f'--data-root={tmp_path}/data']
    monkeypatch.setattr(run, 'run_jobs', lambda *args: (yield Report('error', 1, 'no room')))
    with pytest.raises(SystemExit) as end:
        demo.main(options)
    said = end.value.code
    assert 'Segmenter failed' in said and 'segmenter.log' in said and said.endswith('no room')
    assert not (tmp_path / 'out/results.json').exists()


def test_every_core_is_used_once(tmp_path, monkeypatch):
    given = {}

    def remember(function, jobs, workers):
        given[workers] = [job.threads for job in jobs]
        yield from (Report('result', number, {}) for number in range(len(jobs)))

    monkeypatch.setattr(run, 'run_jobs', remember)
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    for available in (1, 2, 8):
        monkeypatch.setattr(run, 'cores', lambda count=available: count)
        consoles = {key: Console({}) for key in ('segmenter', 'mask_rcnn')}
        run.train_models(demo.parse_arguments(['--quick']), 'data', consoles)
        assert given.popitem() == (min(available, 2), [max(1, available // 2)] * 2)
    monkeypatch.setenv('OMP_NUM_THREADS', '3')
    run.train_models(demo.parse_arguments(['--quick']), 'data', consoles)
    assert given.popitem() == (2, [None, None])
