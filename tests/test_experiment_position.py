"""The experiment on position: what it compares, what it keeps, what it says, and one run of it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tools'))

import experiment_position
from demo_parts.workers import run_jobs
from experiments import position, table
from experiments.chance import pixel_counts, without_position
from experiments.records import Records, Run, settings_of
from experiments.training import train
from experiments.variants import EMBEDDINGS, JOININGS, VARIANTS
from worker_jobs import ENDLESS, KILLED, square

from mmlape.datasets import build_digit_cells, cell_classes
from mmlape.registry import MODELS

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / position.CONFIG
PAGE = ROOT / 'docs/experiment_position.md'


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
    assert set(table._all_variants()) == set(VARIANTS)
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
    biases = [name for name, _ in backbone.named_parameters() if 'relative_position_bias' in name]
    norms = [name for name, _ in backbone.named_parameters() if 'pe_norm.weight' in name]
    assert len(biases) == (4 if key.startswith('relative') else 0)
    assert len(norms) == (4 if key == 'relative-layer_norm' else 0)


@pytest.mark.parametrize(
    ('key', 'embeddings'),
    [
        ('swin-none', []),
        ('swin-default', ['LearnedPosition', 'MergedPosition']),
        ('swin-lape_by_stage', ['LearnedPosition', 'LearnedPosition']),
        ('swin-lape_carried', ['LearnedPosition', 'MergedPosition']),
    ],
)
def test_a_chain_is_cut_or_carried(key, embeddings):
    backbone = MODELS.build(config(key).model.backbone)
    positions = [stage.position for stage in backbone.stages() if stage.position is not None]
    assert [type(position.embedding).__name__ for position in positions] == embeddings
    joining = 'LaPE' if 'lape' in key else 'DefaultJoining'
    assert {type(position.joining).__name__ for position in positions} <= {joining}
    assert not any('relative' in name for name, _ in backbone.named_parameters())
    assert backbone(torch.rand(1, 3, 32, 32))[0].shape == (1, 64, 4, 4)


def test_the_config_names_the_labels_of_the_data():
    cfg = Config.fromfile(CONFIG)
    assert tuple(cfg.metainfo.classes) == cell_classes()
    assert cfg.model.decode_head.num_classes == len(cell_classes())
    assert len(set(map(tuple, cfg.metainfo.palette))) == len(cell_classes())


def test_a_shorter_training_has_a_shorter_schedule():
    cfg = config('none', iterations=40)
    warm_up, falling = cfg.param_scheduler
    assert (warm_up.end, falling.begin, falling.end, cfg.train_cfg.val_interval) == (2, 2, 40, 40)


def test_settings_follow_what_matters_and_not_the_folders():
    base = settings_of(config('none').to_dict(), 'data')
    elsewhere = config('none', data_root=Path('other'), work_dir=Path('other'))
    assert settings_of(elsewhere.to_dict(), 'data') == base
    others = [
        settings_of(config('none', seed=1).to_dict(), 'data'),
        settings_of(config('relative').to_dict(), 'data'),
        settings_of(config('none', iterations=7).to_dict(), 'data'),
        settings_of(config('none').to_dict(), 'other data'),
    ]
    assert len({base, *others}) == 5


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
    return Namespace(
        **{
            'seeds': 1,
            'only': ['none', 'relative'],
            'workers': 1,
            'iterations': 2,
            'work_dir': tmp_path,
            'data_root': data_root,
            'table': False,
            'write_docs': False,
            **changes,
        }
    )


def test_what_is_done_is_not_run_again(tmp_path, data_root, monkeypatch, capsys):
    monkeypatch.setattr(position, 'build_digit_cells', lambda root: root)
    ran = []

    def do(function, jobs, workers):
        for job in jobs:
            ran.append(job.run.name)
            if len(ran) == 3:
                raise KeyboardInterrupt
            Records(tmp_path / 'records').put(job.run, measured(0.5))
        return iter(())

    monkeypatch.setattr(position, 'run_jobs', lambda *args: (yield from do(*args)))
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


def measured(value: float) -> dict:
    return dict(
        mIoU=value,
        mAcc=value,
        aAcc=value,
        iterations=2,
        position_parameters=0,
        seconds=1,
        device='CPU',
    )


def test_mean_and_standard_deviation():
    runs = [dict(variant='default-gabor', seed=s, **measured(v)) for s, v in enumerate((0.2, 0.4))]
    runs += [dict(variant='none', seed=0, **measured(0.1))]
    chance = {key: measured(0.05) for key in table.CHANCE}
    lines = table.markdown(dict(runs=runs, chance=chance)).splitlines()
    (default,) = [line for line in lines if line.startswith('| default ')]
    assert default == '| default | - | - | - | 0.300 ± 0.141 |'
    (unshared,) = [line for line in lines if line.startswith('| unshared ')]
    assert unshared == '| unshared | - | = shared | = shared | - |'
    assert '| no position | 0.100 | 0.100 |' in lines
    assert 'Seeds of each variant: 0 to 2. 3 runs' in lines[-1]


def test_the_page_shows_the_table_of_its_figures(tmp_path):
    results = json.loads(PAGE.with_suffix('.json').read_text())
    page = PAGE.read_text()
    assert table.replace_table(page, table.markdown(results)) == page
    assert {run['variant'] for run in results['runs']} == set(VARIANTS)
    docs = tmp_path / 'docs'
    shutil.copytree(
        PAGE.parent, docs, ignore=lambda _, names: {*names} - {PAGE.name, f'{PAGE.stem}.json'}
    )
    run = dict(variant='none', seed=0, **measured(0.125))
    position.write_docs(docs, dict(results, runs=[run]))
    written = json.loads((docs / f'{PAGE.stem}.json').read_text())['runs']
    assert run in written and {run['variant'] for run in written} == set(VARIANTS)
    assert '| no position | 0.125 | 0.125 |' in (docs / PAGE.name).read_text()
    with pytest.raises(ValueError, match='once each'):
        table.replace_table('a page without marks', '')


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


def test_the_expected_scores_of_guessing_are_those_of_a_simulation():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 13, 200_000)
    guess = np.where(truth == 0, 0, 1 + (truth - 1) // 4 * 4 + rng.integers(0, 4, truth.size))
    ious = [
        ((truth == k) & (guess == k)).sum() / ((truth == k) | (guess == k)).sum() for k in range(13)
    ]
    expected = without_position(np.bincount(truth))['even_guess']
    assert expected['mIoU'] == pytest.approx(np.mean(ious), abs=0.003)
    assert expected['aAcc'] == pytest.approx((truth == guess).mean(), abs=0.003)


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


def test_leaving_early_ends_the_processes():
    started = time.monotonic()
    reports = run_jobs(square, [ENDLESS], 1)
    assert next(reports).kind == 'part'
    reports.close()
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    'arguments', [['--seeds', '0'], ['--workers', '-1'], ['--iterations', 'x']]
)
def test_bad_options_are_named(arguments, capsys):
    with pytest.raises(SystemExit):
        experiment_position.parse_arguments(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_a_variant_that_does_not_exist(tmp_path, capsys):
    assert position.run_experiment(options(tmp_path, tmp_path, only=['lape']), ROOT) == 2
    assert 'lape_progressive-gabor' in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_and_again(tmp_path, data_root):
    """The command itself: stopped after the first record, then continued."""
    command = [
        *(sys.executable, str(ROOT / 'tools/experiment_position.py'), '--seeds', '1'),
        *('--iterations', '2', '--workers', '1', '--only', 'none', '--only', 'relative'),
        *('--work-dir', str(tmp_path), '--data-root', str(tmp_path / 'data')),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and so would this one if the tests are one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    record = tmp_path / 'records/none_seed0.json'
    while not record.exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    assert 'Stopped.' in out
    before = record.stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert '1 of 2 runs are to be done' in again.stdout
    assert record.stat().st_mtime_ns == before
