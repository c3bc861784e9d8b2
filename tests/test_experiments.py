"""The experiments on position, DINO and ListOps: what they compare, what they keep, what they say, and runs of them."""

import json
import multiprocessing
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from worker_jobs import KILLED, handler_at_import, linger, square

from mmlape.cli.experiments import run
from mmlape.registry import MODELS
from mmlape.research.datasets import build_digit_cells
from mmlape.research.demo.workers import Report, run_jobs
from mmlape.research.experiments import dino, list_ops, position, study, table
from mmlape.research.experiments.chance import pixel_counts, without_position
from mmlape.research.experiments.position import VARIANTS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def data_root(tmp_path_factory) -> Path:
    return build_digit_cells(tmp_path_factory.mktemp('data') / 'cells', num_train=32, num_val=8)


def run_of(experiment, variant: str, **changes) -> study.Run:
    given = experiment.STUDY, ROOT / experiment.STUDY.config, variant, 1, Path('data'), Path('work')
    return study.Run(*given, iterations=3)._replace(**changes)


def test_every_embedding_in_every_joining_once():
    assert len(VARIANTS) == 1 + 4 * 5 - 2 + 2 + len(position.PYRAMID)
    assert len({repr(changes) for changes in VARIANTS.values()}) == len(VARIANTS)
    assert set(position.COLUMNS) == set(position.EMBEDDINGS)
    assert set(position.ROWS) == set(position.JOININGS)


CHAINS = {
    'swin-none': [],
    'swin-default': ['LearnedPosition', 'MergedPosition'],
    'swin-lape_by_stage': ['LearnedPosition', 'LearnedPosition'],
    'swin-lape_carried': ['LearnedPosition', 'MergedPosition'],
}


@pytest.mark.usefixtures('cheap_values')
def test_a_variants_config_builds_what_its_name_says():
    for key, variant in VARIANTS.items():
        cfg = run_of(position, key).make_config()
        assert cfg.randomness.seed == 1 and cfg.train_cfg.max_iters == 3
        backbone = MODELS.build(cfg.model.backbone)
        found = [stage.position for stage in backbone.stages() if stage.position is not None]
        embeddings = [type(each.embedding).__name__ for each in found]
        joinings = {f'mmlape.{type(each.joining).__name__}' for each in found}
        names = ' '.join(name for name, _ in backbone.named_parameters())
        assert names.count('relative_position_bias') == (4 if key.startswith('relative') else 0)
        assert names.count('pe_norm.weight') == (4 if key == 'relative-layer_norm' else 0)
        if key in CHAINS:
            assert embeddings == CHAINS[key]
            assert joinings <= {'mmlape.LaPE' if 'lape' in key else 'mmlape.DefaultJoining'}
            assert backbone(torch.rand(1, 3, 32, 32))[0].shape == (1, 64, 4, 4)
            continue
        assert f'mmlape.{embeddings[0]}' == variant['position']['type'], key
        assert joinings == {variant['joining']['type']}, key
        if key.startswith('lape'):
            assert found[0].joining.progressive == key.startswith('lape_progressive')
        if 'sinusoidal' in key:
            assert found[0].embedding.axes == int(key[-2])
    for norm, config in list_ops.NORMS.items():
        cfg = run_of(list_ops, norm).make_config()
        block = MODELS.build(cfg.model.backbone).blocks[0]
        assert f'mmlape.{type(block.norm1).__name__}' == config['type']


def test_only_a_whole_record_of_the_same_settings_counts(tmp_path):
    path = tmp_path / 'none_seed0.json'
    assert study.read_record(path, 'a') is None
    path.write_text(json.dumps(dict(settings='a', mIoU=0.5)))
    assert study.read_record(path, 'a')['mIoU'] == 0.5 and study.read_record(path, 'b') is None
    for damaged in (path.read_text()[:-9], '', '[]'):
        path.write_text(damaged)
        assert study.read_record(path, 'a') is None
    plain = run_of(position, 'none').with_settings('data')
    moved = run_of(position, 'none', data_root=tmp_path, work_dir=tmp_path).with_settings('data')
    others = [
        run_of(position, 'none').with_settings('other'),
        run_of(position, 'none', iterations=4).with_settings('data'),
    ]
    assert plain.settings == moved.settings not in {each.settings for each in others}


def test_the_time_left_counts_runs_that_are_under_way(monkeypatch, capsys):
    """Four runs of 600 seconds, two at a time; the first ends after 600 seconds, and so does the second."""
    now = iter([0, 600, 600, 1200, 1290])
    monkeypatch.setattr(study.time, 'monotonic', lambda: next(now))
    reports = [Report('result', job, {}) for job in (1, 0, 2, 3)]
    monkeypatch.setattr(study, 'run_jobs', lambda *_: (each for each in reports))
    assert len([*study.finished_jobs(None, [...] * 4, 9, 2)]) == 4
    assert capsys.readouterr().out.splitlines() == [
        '4 of 9 runs are to be done, 2 at a time.',
        'Ctrl-C stops; the same command continues.',
        '    about 10:00 for the other 3',
        '    about 10:00 for the other 2',
        '    about 0:00 for the other 1',
    ]


def test_what_is_done_is_not_run_again(tmp_path, data_root, monkeypatch, capsys):
    ran, stop_after = [], 2

    def run_jobs(function, jobs, workers):
        for number, job in enumerate(jobs):
            if len(ran) == stop_after:
                raise KeyboardInterrupt
            ran.append(job.name)
            job.record.parent.mkdir(exist_ok=True)
            job.record.write_text(json.dumps(dict(measured(0.5), **about(job))))
            yield Report('result', number, measured(0.5))

    def about(job):
        return dict(variant=job.variant, seed=job.seed, settings=job.settings)

    def command(*arguments):
        parser = runpy.run_path(str(ROOT / 'tools/experiments/position.py'))['PARSER']
        folders = ('--work-dir', str(tmp_path), '--data-root', str(data_root))
        return run(lambda: parser.parse_args([*folders, '--iterations', '2', *arguments]))

    monkeypatch.setattr(study, 'run_jobs', run_jobs)
    kept = study.Study(**{**vars(position.STUDY), 'build': lambda root: root})
    monkeypatch.setattr(position, 'run_experiment', lambda *given: study.run_study(kept, *given))
    chosen = ('--seeds', '2', '--only', 'none', '--only', 'relative')
    with pytest.raises(SystemExit, match='130'):
        command(*chosen)
    assert ran == ['none_seed0', 'relative_seed0']
    stop_after = 9
    command(*chosen)
    assert ran[2:] == ['none_seed1', 'relative_seed1']
    assert '0.500 ± 0.000' in (tmp_path / 'results.md').read_text()
    command(*chosen)
    assert len(ran) == 4 and '0 of 4 runs are to be done' in capsys.readouterr().out


@pytest.mark.parametrize('module', [list_ops, position], ids=['list_ops', 'position'])
def test_the_parser_knows_all_variants(module):
    name = module.__name__.rpartition('.')[2]
    parser = runpy.run_path(str(ROOT / f'tools/experiments/{name}.py'))['PARSER']
    (only,) = (action for action in parser._actions if action.dest == 'only')
    assert sorted(only.choices) == sorted(module.STUDY.variants)


def measured(value: float) -> dict:
    metrics = dict.fromkeys(('mIoU', 'mAcc', 'aAcc'), value)
    return dict(metrics, iterations=2, position_parameters=0, seconds=1, device='CPU')


PAGES = {
    'position': (position.STUDY.page, position.STUDY.figures, position.markdown),
    'dino': (dino.PAGE, dino.FIGURES, dino.markdown),
    'list_ops': (list_ops.STUDY.page, list_ops.STUDY.figures, list_ops.markdown),
}


@pytest.mark.parametrize('name', PAGES)
def test_a_page_shows_the_table_of_its_figures(name):
    page, figures, markdown = PAGES[name]
    text = (ROOT / page).read_text(encoding='utf-8')
    results = json.loads((ROOT / figures).read_text())
    assert table.replace_table(text, markdown(results)) == text
    with pytest.raises(ValueError, match='once each'):
        table.replace_table('a page without marks', '')


def test_a_run_goes_into_page_and_record(tmp_path):
    names = (position.STUDY.page, position.STUDY.figures)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    run = dict(variant='none', seed=0, **measured(0.125))
    results = dict(json.loads((ROOT / position.STUDY.figures).read_text()), runs=[run])
    study.write_results(position.STUDY, tmp_path, results)
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


def test_two_iterations_and_a_validation(tmp_path, data_root, monkeypatch):
    def small(cfg, variant):
        position.change(cfg, variant)
        cfg.train_dataloader.batch_size = 4

    monkeypatch.setattr(torch, 'set_num_threads', lambda count: None)
    run = run_of(position, 'lape_progressive-gabor', data_root=data_root, work_dir=tmp_path)
    changed = study.Study(**{**vars(position.STUDY), 'change': small})
    found = study.do(run._replace(study=changed, iterations=2, settings='s'), None)
    assert 0 <= found['mIoU'] <= 1
    assert found['position_parameters'] == 13 * 64 + 4 * 2 * 64
    assert not list(tmp_path.rglob('*.pth'))
    assert 'mIoU' in (tmp_path / f'runs/{run.name}/train.log').read_text()
    assert study.read_record(run.record, 's').items() >= found.items()


def test_jobs_in_processes():
    reports = list(run_jobs(square, [1, 2, -3], 2))
    assert {r.job: r.value for r in reports if r.kind == 'result'} == {0: 1, 1: 4}
    (error,) = [r for r in reports if r.kind == 'error']
    assert error.job == 2
    assert '-3 is negative' in error.value
    with pytest.raises(RuntimeError, match='exit code -9'):
        list(run_jobs(square, [KILLED], 1))


def test_workers_ignore_ctrl_c_from_their_first_line():
    """The parent handles it; while they import, each would print a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    (report,) = run_jobs(handler_at_import, [0], 1)
    assert report.value == signal.SIG_IGN and signal.getsignal(signal.SIGINT) is handler


def test_workers_end_when_nobody_reads_on():
    """As at Ctrl-C."""
    reports = run_jobs(linger, [0], 1)
    assert next(reports).value == 0.5
    reports.close()
    assert not multiprocessing.active_children()


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
    arguments = ['--seeds', '1', '--epochs', '4', '--work-dir', str(tmp_path)]

    def command():
        parser = runpy.run_path(str(ROOT / 'tools/experiments/dino.py'))['PARSER']
        return run(lambda: parser.parse_args(arguments))

    config = dino.CONFIG
    command()
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
    command()
    monkeypatch.setattr(dino, 'CONFIG', str(tmp_path / 'other.py'))
    (tmp_path / 'other.py').write_text(
        f"_base_ = '{ROOT / config}'\ntrain_dataloader = dict(batch_size=32)"
    )
    with pytest.raises(TypeError):
        command()
