"""The programs of benchmarks/: references compute what ours compute; what runs print, record and refuse."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook

# As for the command, which is a file of its own.
sys.path.append(str(Path(__file__).resolve().parents[1] / 'benchmarks'))

import warm_start

from benchmarks import __main__ as main
from benchmarks import against, cases, measuring, on_gpu, scaling, side_by_side, training_step
from mmlape.research.datasets import build_digit_scenes

ROOT = Path(__file__).resolve().parents[1]


def test_programs_run():
    """A file that has a `main` calls it: one that did not measured nothing, in silence."""
    for path in (ROOT / 'benchmarks').glob('*.py'):
        text = path.read_text(encoding='utf-8')
        if '\ndef main(' in text:
            end = text.rpartition('\nif __name__ == ')[2]
            assert end.startswith("'__main__':\n") and 'main()' in end, path.name


@pytest.mark.parametrize('flavour', ['segmentation', 'detection'])
def test_the_published_adapter_is_ours(flavour):
    """And all of it is trained; its gradients: tests/backbones/test_vit_adapter.py."""
    case = cases.adapter(flavour, 96)
    assert measuring.differences(case).keys() == {'published'}
    published = case.models['published'].train()
    measuring.train_step(case, published)
    assert all(parameter.grad.any() for parameter in published.parameters())


def test_what_differs_is_not_timed():
    case = cases.dtn(8, 16, 2, 1, 1)
    with torch.no_grad():
        case.models['published'].weight.add_(1)
    with pytest.raises(RuntimeError, match='published and ours differ by'):
        measuring.differences(case)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_run_prints_and_records(dtype, monkeypatch, capsys, tmp_path):
    small = {'dtn 8 x 8': lambda: cases.dtn(8, 16, 2, 1, 1)}
    monkeypatch.setattr(main, 'CASES', small)
    monkeypatch.setattr(measuring, 'TURN_MS', 0)
    monkeypatch.setattr(main, 'quieten', lambda: None)
    threads = torch.get_num_threads()
    record = tmp_path / 'record.json'
    monkeypatch.setattr(sys, 'argv', ['', '--repeats', '1', '--dtype', dtype, '--out', str(record)])
    assert main.main() == 0
    torch.set_num_threads(threads)
    assert 'LayerNorms' in capsys.readouterr().out
    found = json.loads(record.read_text())
    machine = found['machine']
    assert machine['commit'] and machine['torch'].startswith(machine['versions']['torch'])
    assert found['results']['dtype'] == dtype
    case = found['results']['cases']['dtn 8 x 8']
    assert case['difference'].keys() == {'published'}
    assert case['saved_bytes']['ours'] < case['saved_bytes']['published']
    for what in ('forward', 'train_step'):
        assert case[what].keys() == {'LayerNorm', 'published', 'ours'}
        assert min(each['median_ms'] for each in case[what].values()) > 0


@pytest.mark.parametrize(
    'records',
    [
        {
            'AMD EPYC': 'upstream_cpu',
            'Intel Xeon': 'upstream_cpu_intel',
            'AMD EPYC, AVX2': 'upstream_cpu_avx2',
        },
        {'float32': 'upstream_h200', 'bfloat16': 'upstream_h200_bf16'},
    ],
)
def test_the_page_shows_the_records(records):
    paths = {name: main.RECORD.with_stem(stem) for name, stem in records.items()}
    assert all(
        cases == main.CASES.keys() for cases in map(dict.keys, main.cases_of(paths).values())
    )
    page = (ROOT / 'docs/speed.md').read_text(encoding='utf-8')
    assert main.compared_table(paths) in page
    assert 'float32' not in records or main.times_table(paths) in page


def test_scaling_measures_a_point_once_and_draws_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(measuring, 'TURN_MS', 0)
    for name, value in dict(SIDES=(512, 1024), BATCHES=(1,), quieten=lambda: None).items():
        monkeypatch.setattr(scaling, name, value)

    def small(side, batch):
        return cases.dtn(side // 64, 16, 2, 1, batch)

    monkeypatch.setattr(scaling, 'NETWORKS', {'DTN': (small, 512)})
    record, pictures = tmp_path / 'record.json', tmp_path / '{axis}.png'
    arguments = ['', '--repeats', '1', '--out', str(record), '--pictures', str(pictures)]
    monkeypatch.setattr(sys, 'argv', arguments)
    threads = torch.get_num_threads()
    assert scaling.main() == 0
    first = scaling.read(record)
    said = (
        'DTN, kept, 512 to 1024: pixels to the power of LayerNorm 0.99, published 1.84, ours 1.00'
    )
    assert said in capsys.readouterr().out
    monkeypatch.setattr(scaling, 'point', None)
    assert scaling.main() == 0
    torch.set_num_threads(threads)
    assert scaling.read(record) == first
    assert all((tmp_path / f'{axis}.png').stat().st_size for axis in ('side', 'batch'))


@pytest.mark.parametrize(
    'case', [partial(cases.dtn, 8, 16, 2, 1, 1), partial(cases.adapter, 'segmentation', 64)]
)
def test_memory_is_counted_without_values_as_with_them(case):
    case = case()
    for name, model in case.models.items():
        model.train()
        kept = side_by_side.saved_bytes(partial(case.call, model))
        assert 1e6 * scaling.kept_megabytes(case, name) == pytest.approx(kept, rel=1e-3), name


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


def test_a_revision_is_unpacked_and_removed():
    with against.copy_of('HEAD') as folder:
        assert (folder / 'mmlape' / 'version.py').is_file()
        assert folder != ROOT
    assert not folder.exists()


def test_what_cannot_be_compared_is_refused(tmp_path, monkeypatch, capsys):
    for name, reason in (('no-such-revision', 'neither a folder nor'), (tmp_path, 'no mmlape in')):
        with pytest.raises(SystemExit, match=reason), against.copy_of(str(name)):
            pass
    for option, value in (('--only', 'resnet'), ('--repeats', '0')):
        monkeypatch.setattr(sys, 'argv', ['against', 'HEAD', option, value])
        with pytest.raises(SystemExit):
            against.parse_arguments()
        assert f'{option} {value}: ' in capsys.readouterr().err


def test_more_than_the_limit_is_worse(capsys):
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


@pytest.mark.slow
def test_what_a_gpu_is_asked_goes_on(tmp_path, monkeypatch, capsys):
    """Each step is recorded, a failure too; the next call begins with what has none, or failed."""
    monkeypatch.setattr(on_gpu, 'quieten', lambda: None)
    monkeypatch.setattr(measuring, 'TURN_MS', 0)

    def run(*options, norm=lambda: cases.dtn(8, 16, 2, 1, 1)):
        monkeypatch.setattr(on_gpu, 'NETWORKS', {'norm': (None, norm)})
        command = [
            '',
            '--trial',
            '--only',
            'norm',
            '--out',
            str(tmp_path / 'record.json'),
            *options,
        ]
        monkeypatch.setattr(sys, 'argv', command)
        return on_gpu.main(), json.loads((tmp_path / 'record.json').read_text())['results']

    code, first = run(norm=lambda: 1 / 0)
    assert code == 1 and {each['error'] for each in first.values()} == {
        'ZeroDivisionError: division by zero'
    }
    assert list(first) == ['norm, float32', 'norm, TF32', 'norm, bfloat16', 'norm, profile']
    assert run('--minutes', '-1') == (0, first)
    assert 'The same command goes on' in capsys.readouterr().out
    code, found = run()
    assert (
        code == 0 and found.keys() == first.keys() and 'norm, profile: ' in capsys.readouterr().out
    )
    models = {'LayerNorm', 'published', 'ours', 'ours, compiled', 'ours, kernels'}
    for name in on_gpu.PRECISIONS:
        case = found[f'norm, {name}']
        kinds = (*measuring.TIMES, 'peak_bytes', 'images_per_second')
        assert all(case[kind].keys() == models for kind in kinds)
        assert min(case['peak_bytes'].values()) > 0
    assert len(found['norm, profile']['kernels']) == on_gpu.KERNELS_SHOWN
    assert run() == (0, found)


def test_without_a_gpu_it_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['', '--only', 'norm'])
    monkeypatch.setattr(on_gpu.torch.cuda, 'is_available', lambda: False)
    with pytest.raises(SystemExit):
        on_gpu.main()
    assert 'PyTorch finds no GPU; --trial' in capsys.readouterr().err


class SlowHook(Hook):
    """Takes a minute of the clock in every step."""

    taken = 0  # of the class: configs copy what is in them

    def after_train_iter(self, *args, **kwargs):
        SlowHook.taken += 60


def test_a_step_is_divided(tmp_path, monkeypatch):
    """All parts take some time, and what a slow hook takes is the hooks'."""
    monkeypatch.setattr(training_step, 'seconds_now', lambda: SlowHook.taken + time.process_time())
    scenes = build_digit_scenes(tmp_path / 'data', num_train=2, num_val=1)
    cfg = training_step.prepared(
        'demo/mask-rcnn_vit-micro-dinov3_sfp_digit-scenes', scenes, 3, tmp_path / 'work'
    )
    cfg.train_dataloader.batch_size = 2
    cfg.custom_hooks = [dict(type=SlowHook)]
    found = training_step.measure(cfg, warm_up=1)
    parts = found['parts_ms']
    assert (found['images_per_step'], found['steps']) == (2, 2)
    assert all(value > 0 for value in parts.values())
    assert 60_000 <= parts['hooks'] < 62_000 <= found['step_ms'] + 2000
    assert sum(parts.values()) == pytest.approx(found['step_ms'], rel=0.05)


def test_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    build = warm_start.build_digit_cells
    monkeypatch.setattr(
        warm_start, 'build_digit_cells', lambda root: build(root, num_train=6, num_val=4)
    )
    monkeypatch.setattr(warm_start, 'BATCH', 2)
    command = ['warm_start.py', '--seeds', '1', '--base-iterations', '2', '--iterations', '1']
    for name in ('work-dir', 'data-root'):
        command += [f'--{name}', str(tmp_path / name)]
    command += ['--out', str(tmp_path / 'record.json')]
    monkeypatch.setattr(sys, 'argv', [*command, '--minutes', '-1'])
    with pytest.raises(SystemExit, match='the minutes are over'):
        warm_start.main()
    monkeypatch.setattr(sys, 'argv', command)
    warm_start.main()
    said = capsys.readouterr().out
    runs = json.loads((tmp_path / 'record.json').read_text())['results']['runs']
    first = {arm: run['0']['first_loss'] for arm, run in runs.items()}
    assert first['affine'] == first['gate'] == first['continue'] != first['lape']
    assert said.count('mIoU') == 5 + 1 and '| default joining, trained on |' in said
    warm_start.main()
    again = capsys.readouterr().out
    assert again.count(', seed 0: mIoU') == 0
    assert again.splitlines()[-5:] == said.splitlines()[-5:]


def test_summary_is_of_pairs():
    run = dict(first_loss=1.0, last_loss=0.5)
    scores = {'continue': (0.5, 0.7), 'affine': (0.6, 0.8)}
    done = {
        arm: {str(seed): dict(run, miou=score) for seed, score in enumerate(values)}
        for arm, values in scores.items()
    }
    found = warm_start.summary(done)
    assert found['affine']['gain_mean'] == 0.1 and found['affine']['gain_error'] == 0
    assert found['affine']['miou_std'] == found['continue']['miou_std'] == 0.1414
    assert '+0.1000 ± 0.0000' in warm_start.table(found)
