"""benchmarks/warm_start.py: same first loss for both constructions, resumable, an honest summary."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / 'benchmarks'


@pytest.fixture(scope='module')
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location('warm_start', BENCHMARKS / 'warm_start.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    sys.modules.pop('side_by_side', None)


def test_runs_and_goes_on(benchmark, tmp_path, monkeypatch, capsys):
    build = benchmark.build_digit_cells
    monkeypatch.setattr(
        benchmark, 'build_digit_cells', lambda root: build(root, num_train=6, num_val=4)
    )
    monkeypatch.setattr(benchmark, 'BATCH', 2)
    command = ['warm_start.py', '--seeds', '1', '--base-iterations', '2', '--iterations', '1']
    for name in ('work-dir', 'data-root'):
        command += [f'--{name}', str(tmp_path / name)]
    command += ['--out', str(tmp_path / 'record.json')]
    monkeypatch.setattr(sys, 'argv', [*command, '--minutes', '-1'])
    with pytest.raises(SystemExit, match='the minutes are over'):
        benchmark.main()
    monkeypatch.setattr(sys, 'argv', command)
    benchmark.main()
    said = capsys.readouterr().out
    runs = benchmark.json.loads((tmp_path / 'record.json').read_text())['results']['runs']
    first = {arm: run['0']['first_loss'] for arm, run in runs.items()}
    assert first['affine'] == first['gate'] == first['continue'] != first['lape']
    assert said.count('mIoU') == 5 + 1 and '| default joining, trained on |' in said
    benchmark.main()
    again = capsys.readouterr().out
    assert again.count(', seed 0: mIoU') == 0
    assert again.splitlines()[-5:] == said.splitlines()[-5:]


def test_summary_is_of_pairs(benchmark):
    run = dict(first_loss=1.0, last_loss=0.5)
    scores = {'continue': (0.5, 0.7), 'affine': (0.6, 0.8)}
    done = {
        arm: {str(seed): dict(run, miou=score) for seed, score in enumerate(values)}
        for arm, values in scores.items()
    }
    found = benchmark.summary(done)
    assert found['affine']['gain_mean'] == 0.1 and found['affine']['gain_error'] == 0
    assert found['affine']['miou_std'] == found['continue']['miou_std'] == 0.1414
    assert '+0.1000 ± 0.0000' in benchmark.table(found)


def test_schedule(benchmark):
    rates = [benchmark.schedule(step, 100) for step in range(100)]
    assert rates[:6] == sorted(rates[:6]) and rates[5:] == sorted(rates[5:], reverse=True)
    assert max(rates) == rates[5] == 1 and 0.01 < rates[-1] < 0.02
