"""The experiments on position, DINO and ListOps: what they compare, what they keep, what they say, and runs of them."""

import json
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from worker_jobs import KILLED, square

from mmlape.registry import MODELS
from mmlape.research.datasets import build_digit_cells
from mmlape.research.demo.workers import run_jobs
from mmlape.research.experiments import dino, list_ops, position, table
from mmlape.research.experiments.chance import pixel_counts, without_position
from mmlape.research.experiments.records import Records, Run
from mmlape.research.experiments.training import train
from mmlape.research.experiments.variants import EMBEDDINGS, JOININGS, VARIANTS

ROOT = Path(__file__).resolve().parents[1]
MAIN = runpy.run_path(str(ROOT / 'tools/experiments/dino.py'))['main']
CONFIG = ROOT / position.CONFIG


@pytest.fixture(scope='module')
def data_root(tmp_path_factory) -> Path:
    return build_digit_cells(tmp_path_factory.mktemp('data') / 'cells', num_train=32, num_val=8)


def config(key: str, **options) -> Config:
    defaults = dict(seed=0, data_root=Path('data'), work_dir=Path('work'))
    return VARIANTS[key].config(CONFIG, **{**defaults, **options})


def test_every_embedding_in_every_joining_once():
    assert len(VARIANTS) == 1 + 4 * 5 - 2 + 2 + len(table.SWIN)
    contents = [repr(replace(variant, key='')) for variant in VARIANTS.values()]
    assert len(set(contents)) == len(contents)
    assert set(table.COLUMNS) == set(EMBEDDINGS)
    assert set(table.ROWS) == set(JOININGS)


@pytest.mark.parametrize('key', [key for key in VARIANTS if key not in table.SWIN])
def test_a_variants_config_builds_what_its_name_says(key):
    backbone = MODELS.build(config(key).model.backbone)
    variant = VARIANTS[key]
    assert f'mmlape.{type(backbone.position.embedding).__name__}' == variant.position['type']
    assert f'mmlape.{type(backbone.position.joining).__name__}' == variant.joining['type']
    if key.startswith('lape'):
        assert backbone.position.joining.progressive == key.startswith('lape_progressive')
    if 'sinusoidal' in key:
        assert backbone.position.embedding.axes == int(key[-2])
    names = ' '.join(name for name, _ in backbone.named_parameters())
    assert names.count('relative_position_bias') == (4 if key.startswith('relative') else 0)
    assert names.count('pe_norm.weight') == (4 if key == 'relative-layer_norm' else 0)


CHAINS = {
    'swin-none': [],
    'swin-default': ['LearnedPosition', 'MergedPosition'],
    'swin-lape_by_stage': ['LearnedPosition', 'LearnedPosition'],
    'swin-lape_carried': ['LearnedPosition', 'MergedPosition'],
}


@pytest.mark.parametrize('key', CHAINS)
def test_a_chain_is_cut_or_carried(key):
    backbone = MODELS.build(config(key).model.backbone)
    positions = [stage.position for stage in backbone.stages() if stage.position is not None]
    assert [type(position.embedding).__name__ for position in positions] == CHAINS[key]
    joining = 'LaPE' if 'lape' in key else 'DefaultJoining'
    assert {type(position.joining).__name__ for position in positions} <= {joining}
    assert not any('relative' in name for name, _ in backbone.named_parameters())
    assert backbone(torch.rand(1, 3, 32, 32))[0].shape == (1, 64, 4, 4)


def test_only_a_whole_record_of_the_same_settings_counts(tmp_path):
    records, run = Records(tmp_path / 'records'), Run('none', 0, 'a')
    assert records.get(run) is None
    records.put(run, {'mIoU': 0.5})
    assert records.get(run)['mIoU'] == 0.5
    assert records.get(Run('none', 0, 'b')) is None
    assert records.get(Run('none', 1, 'a')) is None
    path = records.path(run)
    for damaged in (path.read_text()[:-9], '', '[]'):
        path.write_text(damaged)
        assert records.get(run) is None


def options(tmp_path: Path, data_root: Path, **changes) -> Namespace:
    usual = dict(seeds=1, only=['none', 'relative'], workers=1, iterations=2)
    places = dict(work_dir=tmp_path, data_root=data_root, table=False, write_docs=False)
    return Namespace(**{**usual, **places, **changes})


def test_what_is_done_is_not_run_again(tmp_path, data_root, monkeypatch, capsys):
    monkeypatch.setattr(position, 'build_digit_cells', lambda root: root)
    ran = []

    def run_jobs(function, jobs, workers):
        for job in jobs:
            ran.append(job.run.name)
            if len(ran) == 3:
                raise KeyboardInterrupt
            Records(tmp_path / 'records').put(job.run, measured(0.5))
        yield from ()

    monkeypatch.setattr(position, 'run_jobs', run_jobs)
    chosen = options(tmp_path, data_root, seeds=2)
    with pytest.raises(KeyboardInterrupt):
        position.run_experiment(chosen, ROOT)
    assert ran == ['none_seed0', 'relative_seed0', 'none_seed1']
    ran[:] = ['']
    with pytest.raises(KeyboardInterrupt):
        position.run_experiment(options(tmp_path, data_root, seeds=3), ROOT)
    assert ran[1:] == ['none_seed1', 'relative_seed1']
    ran[:] = [''] * 9
    assert position.run_experiment(chosen, ROOT) == 0
    assert ran[9:] == ['relative_seed1']
    assert '0.500 ± 0.000' in (tmp_path / 'results.md').read_text()
    ran.clear()
    assert position.run_experiment(chosen, ROOT) == 0
    assert not ran
    assert 'All 4 runs are done' in capsys.readouterr().out
    assert position.run_experiment(options(tmp_path, data_root, only=['lape']), ROOT) == 2
    assert 'lape_progressive-gabor' in capsys.readouterr().out


def measured(value: float) -> dict:
    metrics = dict.fromkeys(('mIoU', 'mAcc', 'aAcc'), value)
    return dict(metrics, iterations=2, position_parameters=0, seconds=1, device='CPU')


PAGES = {
    'position': (position, table.markdown),
    'dino': (dino, dino.markdown),
    'list_ops': (list_ops, list_ops.markdown),
}


@pytest.mark.parametrize('name', PAGES)
def test_a_page_shows_the_table_of_its_figures(name):
    experiment, markdown = PAGES[name]
    page = (ROOT / experiment.PAGE).read_text(encoding='utf-8')
    assert table.replace_table(page, markdown(recorded(experiment))) == page
    with pytest.raises(ValueError, match='once each'):
        table.replace_table('a page without marks', '')


def recorded(experiment):
    return json.loads((ROOT / experiment.FIGURES).read_text())


def test_what_was_measured():
    assert {run['variant'] for run in recorded(position)['runs']} == set(VARIANTS)
    dinos, figures = recorded(dino), recorded(list_ops)
    assert len(dinos) >= 3 and all(r['after'] > r['before'] + 5 for r in dinos)
    for norm in ('LN', 'GN', 'DTN'):
        assert len([run for run in figures['runs'] if run['variant'] == norm]) >= 3
    assert all(run['accuracy'] > figures['chance']['always'] + 0.05 for run in figures['runs'])


def test_a_run_goes_into_page_and_record(tmp_path):
    names = (position.PAGE, position.FIGURES)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    run = dict(variant='none', seed=0, **measured(0.125))
    results = dict(recorded(position), runs=[run])
    position.write_results(*(tmp_path / name for name in names), results, position.markdown)
    page, record = ((tmp_path / name).read_text() for name in names)
    assert '| no position | 0.125 | 0.125 |' in page
    written = json.loads(record)['runs']
    assert run in written and {run['variant'] for run in written} == set(VARIANTS)


def test_what_can_be_had_without_position(data_root):
    scores = without_position(np.array([1200, *[100] * 12]))
    assert scores['background']['mIoU'] == pytest.approx(0.5 / 13)
    assert scores['one_kind']['mIoU'] == pytest.approx((1 + 3 * 0.25) / 13)
    assert scores['even_guess']['mIoU'] == pytest.approx((1 + 12 / 7) / 13)
    assert scores['even_guess']['aAcc'] == pytest.approx(0.625)
    assert scores['odd_row']['mIoU'] == pytest.approx((1 + 12 / 3) / 13)
    assert scores['odd_row']['mAcc'] == pytest.approx((1 + 12 / 2) / 13)
    counts = pixel_counts(data_root, 'val')
    assert counts.sum() == 8 * 32 * 32


def test_two_iterations_and_a_validation(tmp_path, data_root):
    cfg = config(
        'lape_progressive-gabor', data_root=data_root, work_dir=tmp_path / 'run', iterations=2
    )
    cfg.train_dataloader.batch_size = 4
    first = train(cfg.copy(), 'test', lambda part: None)
    assert 0 <= first['mIoU'] <= 1
    assert first['position_parameters'] == 13 * 64 + 4 * 2 * 64
    assert not list(tmp_path.rglob('*.pth'))
    assert 'mIoU' in (tmp_path / 'run/train.log').read_text()


def test_jobs_in_processes():
    reports = list(run_jobs(square, [1, 2, -3], 2))
    assert {r.job: r.value for r in reports if r.kind == 'result'} == {0: 1, 1: 4}
    (error,) = [r for r in reports if r.kind == 'error']
    assert error.job == 2
    assert '-3 is negative' in error.value
    with pytest.raises(RuntimeError, match='exit code -9'):
        list(run_jobs(square, [KILLED], 1))


def test_workers_end_with_a_killed_parent():
    code = (
        'import sys; sys.path[:0] = sys.argv[1:]\n'
        'from mmlape.research.demo.workers import run_jobs\n'
        'from worker_jobs import linger\n'
        'for report in run_jobs(linger, [0], 1): print(report.value, flush=True)'
    )
    paths = [str(ROOT / 'tests/helpers')]
    with subprocess.Popen([sys.executable, '-c', code, *paths], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline()
        parent.kill()
        # The end of the pipe is the end of all that hold it.
        assert parent.communicate(timeout=60) == (b'', None)


@pytest.mark.slow
def test_a_run_of_dino(tmp_path, monkeypatch):
    """Records, curves and attention; a seed that is there is not trained again."""
    arguments, config = ['--seeds', '1', '--epochs', '4', '--work-dir', str(tmp_path)], dino.CONFIG
    assert MAIN(arguments) == 0
    record = json.loads((tmp_path / 'seed0.json').read_text())
    assert (record['epochs'], record['iterations']) == (4, 88)
    first, (step, _), last = record['curves']['k-NN accuracy (%)']
    assert (first, step, last) == ([0, record['before']], 44, [88, record['after']])
    assert 20 < record['before'] < record['after'] < 90
    # The test before training is of the weights that training starts from, which are wider than PyTorch's.
    weights = torch.load(tmp_path / 'seed0/before.pth')['state_dict']
    assert weights['backbone.blocks.0.attn.qkv.weight'].std() == pytest.approx(0.12, rel=0.05)
    names = (*dino.PUBLISHED, 'distance-before', 'distance-after')
    assert all((tmp_path / f'dino-{name}.png').stat().st_size > 1000 for name in names)
    monkeypatch.setattr(dino.Runner, 'from_cfg', None)
    assert MAIN(arguments) == 0
    monkeypatch.setattr(dino, 'CONFIG', str(tmp_path / 'other.py'))
    (tmp_path / 'other.py').write_text(
        f"_base_ = '{ROOT / config}'\ntrain_dataloader = dict(batch_size=32)"
    )
    with pytest.raises(TypeError):
        MAIN(arguments)


@pytest.mark.parametrize('norm', list_ops.NORMS)
def test_every_norm_is_that_of_its_name(norm, tmp_path):
    chosen = options(tmp_path, tmp_path, iterations=3)
    job = list_ops._job(chosen, ROOT / list_ops.CONFIG, 'data', norm, seed=1)
    cfg = list_ops._config(job)
    assert cfg.randomness.seed == 1 and cfg.train_cfg.max_iters == 3
    block = MODELS.build(cfg.model.backbone).blocks[0]
    assert f'mmlape.{type(block.norm1).__name__}' == list_ops.NORMS[norm]['type']
