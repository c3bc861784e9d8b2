"""The experiment on norms and ListOps: what it compares, what it says, and the page that it writes."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tools'))

from experiments import list_ops
from experiments.records import Records
from experiments.table import END, START, replace_table

from mmlape.datasets import build_list_ops
from mmlape.registry import MODELS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs/listops.md'
FIGURES = json.loads(PAGE.with_name('experiment_list_ops.json').read_text())


def options(tmp_path, **given):
    defaults = dict(
        seeds=2, only=None, workers=1, iterations=3, table=False, write_docs=False,
        work_dir=tmp_path / 'work', data_root=tmp_path / 'data',
    )  # fmt: skip
    return Namespace(**{**defaults, **given})


@pytest.mark.parametrize('norm', list_ops.NORMS)
def test_every_norm_is_that_of_its_name(norm, tmp_path):
    job = list_ops._job(options(tmp_path), ROOT / list_ops.CONFIG, 'data', norm, seed=1)
    cfg = list_ops._config(job)
    assert cfg.randomness.seed == 1 and cfg.train_cfg.max_iters == 3
    block = MODELS.build(cfg.model.backbone).blocks[0]
    assert f'mmlape.{type(block.norm1).__name__}' == list_ops.NORMS[norm]['type']


def test_settings_tell_norms_apart_and_folders_not(tmp_path):
    jobs = [
        list_ops._job(options(folder), ROOT / list_ops.CONFIG, 'data', norm, 0).run.settings
        for folder in (tmp_path, tmp_path / 'other')
        for norm in list_ops.NORMS
    ]
    count = len(list_ops.NORMS)
    assert len(set(jobs)) == count and jobs[:count] == jobs[count:]


def test_chance(tmp_path):
    root = tmp_path / 'annotations'
    root.mkdir()
    lines = ['[MAX 1 9 ]\t9', '[MAX 9 2 ]\t9', '[MIN 1 9 ]\t1', '3\t9']
    (root / 'basic_train.tsv').write_text('\n'.join(['Source\tTarget', *lines, '']))
    lines = ['[MAX 8 9 ]\t9', '[MIN 1 2 ]\t1', '[SM 4 5 ]\t9', '5\t5']
    (root / 'basic_val.tsv').write_text('\n'.join(['Source\tTarget', *lines, '']))
    assert list_ops.chance(tmp_path) == {'always': 0.5, 'first_operator': 0.75}


def test_what_is_done_is_not_run_again(tmp_path, monkeypatch, capsys):
    sizes = dict(num_train=20, num_val=5, num_test=5, length=(5, 30))
    monkeypatch.setattr(list_ops, 'build_list_ops', lambda root, **_: build_list_ops(root, **sizes))
    done = []

    def run_remaining(jobs, records, *_):
        for job in jobs:
            if records.get(job.run) is None:
                done.append(job.run.name)
                measured = dict(accuracy=0.5, iterations=3, parameters=9, seconds=2.0, device='CPU')
                records.put(job.run, measured)

    monkeypatch.setattr(list_ops, 'run_remaining', run_remaining)
    assert list_ops.run_experiment(options(tmp_path, only=['DTN']), ROOT) == 0
    assert done == ['DTN_seed0', 'DTN_seed1']
    assert list_ops.run_experiment(options(tmp_path), ROOT) == 0
    assert len(done) == 2 * len(list_ops.NORMS) == len(set(done))
    assert '| DTN | 0.500 ± 0.000 | 2 |' in capsys.readouterr().out
    assert len([*Records(tmp_path / 'work/records').folder.iterdir()]) == len(done)
    assert list_ops.run_experiment(options(tmp_path, only=['XN']), ROOT) == 2
    assert '--only XN: expected one of LN, BN' in capsys.readouterr().out


def test_the_page_says_what_was_measured():
    text = PAGE.read_text(encoding='utf-8')
    assert replace_table(text, list_ops.markdown(FIGURES)) == text
    assert text.count(START) == text.count(END) == 1
    for norm in ('LN', 'GN', 'DTN'):
        assert len([run for run in FIGURES['runs'] if run['variant'] == norm]) >= 3
    assert all(run['accuracy'] > FIGURES['chance']['always'] + 0.05 for run in FIGURES['runs'])
