"""benchmarks/against.py: two copies in turns, what counts as worse, and what is refused."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def against(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module('benchmarks.against')


@pytest.mark.slow
def test_a_copy_is_compared_with_itself(tmp_path):
    command = [sys.executable, '-m', 'benchmarks.against', str(ROOT), '--quick', '--only', 'micro']
    command += ['--limit', '1e6', '--clock', 'processor', '--out', str(tmp_path / 'record.json')]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'nothing is worse' in done.stdout
    record = json.loads((tmp_path / 'record.json').read_text())
    results, threads = record['results'], record['machine']['threads']
    assert threads == 1 and results['before'] == results['now']
    (case,) = results['cases'].values()
    for what in ('parameters', 'flops', 'saved_bytes'):
        assert case[what]['before'] == case[what]['now'] > 0 and case[what]['ratio'] == 1
    for what in ('forward', 'train_step', 'deployed'):
        assert min(case[what][side]['median_ms'] for side in ('before', 'now')) > 0


def test_a_revision_is_unpacked_and_removed(against):
    with against.copy_of('HEAD') as folder:
        assert (folder / 'mmlape' / 'version.py').is_file()
        assert folder != ROOT
    assert not folder.exists()


def test_what_cannot_be_compared_is_refused(against, tmp_path, monkeypatch, capsys):
    for name, reason in (('no-such-revision', 'neither a folder nor'), (tmp_path, 'no mmlape in')):
        with pytest.raises(SystemExit, match=reason), against.copy_of(str(name)):
            pass
    for option, value in (('--only', 'resnet'), ('--repeats', '0')):
        monkeypatch.setattr(sys, 'argv', ['against', 'HEAD', option, value])
        with pytest.raises(SystemExit):
            against.parse_arguments()
        assert f'{option} {value}: ' in capsys.readouterr().err


def test_a_side_that_fails_says_why(against, tmp_path):
    """Another revision may lack a component, or not import at all."""
    (tmp_path / 'mmlape').mkdir()
    (tmp_path / 'mmlape' / '__init__.py').write_text('raise SystemExit(7)\n')
    with against.Side('before', tmp_path) as side, pytest.raises(RuntimeError, match='exit code 7'):
        side.ask('about')
    found = {'vit': dict(error='before: KeyError: no such type')}
    assert against.report(found, 2) == 1
    assert 'vit  before: KeyError' in against.table(found)


def test_more_than_the_limit_is_worse(against, capsys):
    times = {'before': [10.0, 11.0, 14.0], 'now': [10.1, 11.33, 14.0]}
    sizes = dict(before=1000, now=1021, ratio=1.021)
    found = {'vit': dict(forward=against.compared(times), parameters=sizes)}
    assert found['vit']['forward']['now'] == dict(
        median_ms=11.33, iqr_ms=1.95, min_ms=10.1, ratio=1.01
    )
    assert 'forward 11.0 ± 2.0 -> 11.3 ± 1.9 ms (1.010)' in against.table(found)
    assert against.report(found, 2) == 1
    said = capsys.readouterr().out
    assert 'vit: parameters x 1.021' in said and 'forward' not in said
    assert against.report(found, 2.5) == 0


def test_each_side_imports_its_own_package(against, tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', 'more')
    assert against.environment(tmp_path)['PYTHONPATH'] == f'{tmp_path}{os.pathsep}more'
