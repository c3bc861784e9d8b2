"""`mmlape doctor`: what it finds in this environment, in broken ones, on bad machines, and in configs."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import mmengine
import pytest
import torch
from config_utils import CONFIGS, coco_content, write_coco
from mmengine.config import Config
from site_copies import link_site_packages, run_python, write_package
from tool_runs import Commands

import mmlape
from mmlape import stack
from mmlape.doctor import Check, check, exit_code, machine, packages, table, training

ROOT = Path(mmlape.__file__).resolve().parent.parent
DEMO = 'mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes'
GIB = machine.GIB


class Here:
    """A machine with these GPUs."""

    def __init__(self, gpus=(), processes=1, cores=4, **facts):
        self.gpus, self.processes, self.cores = list(gpus), processes, cores
        self.torch = (
            dict(version='2.11.0', cuda=None, gpus=self.gpus, numpy=None, torchvision=None) | facts
        )


def gpu(**facts):
    usual = dict(
        name='A100', memory=40 * GIB, capability=[8, 0], bf16=True, fault=None, built=['sm_80']
    )
    return usual | facts


@pytest.fixture
def commands(tmp_path, monkeypatch, capsys):
    # What takes seconds is tested on its own.
    monkeypatch.setattr(packages, '_operators', lambda: Check('mmcv operators', 'ok', 'work'))
    monkeypatch.setattr(packages, '_own_operators', list)
    monkeypatch.setattr(packages, '_toolboxes', list)
    monkeypatch.setattr(machine.Machine, '_asked', (Here().torch, ''))
    monkeypatch.setattr(machine, '_nvidia_smi', lambda: (0, ''))
    return Commands(tmp_path, monkeypatch, capsys)


def answers(commands, *arguments):
    """``{name: check}`` of the JSON, and the exit code."""
    with pytest.raises(SystemExit) as end:
        commands('doctor.py', *arguments, '--json')
    content = json.loads(commands.capsys.readouterr().out)
    assert content['ok'] == (end.value.code == 0)
    return {entry['name']: entry for entry in content['checks']}, end.value.code


@pytest.mark.slow
def test_this_environment_is_well():
    """With the operators and the toolboxes, which are called and imported."""
    site = Path(mmengine.__file__).resolve().parent.parent
    done = run_python(
        "import runpy, sys; sys.argv = ['-m', 'doctor']; runpy.run_module('mmlape', run_name='__main__')",
        site, ROOT, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'NMS, RoIAlign, deformable attention work on the CPU' in done.stdout
    assert 'attention, deformable attention and DTN for CPUs: compiled' in done.stdout
    assert 'mmdet, mmseg' in done.stdout and 'error' not in done.stdout


BROKEN = {
    'no mmcv': (('mmcv',), None, 'mmcv', 'not installed'),
    'no mmengine': (('mmengine',), None, 'mmengine', 'not installed'),
    'no torch': (('torch',), None, 'torch', 'which is not installed'),
    'no operators': (
        ('mmcv',),
        ('mmcv', '2.1.0'),
        'mmcv operators',
        'without its compiled operators',
    ),
    'old mmdet': (('mmdet',), ('mmdet', '3.0.0'), 'mmdet', 'but 3.0.0 is installed'),
}


@pytest.mark.parametrize('case', BROKEN)
def test_it_works_where_packages_are_missing_or_broken(case, tmp_path):
    """Where `import mmlape` fails, this is the command that says why, all of it, and what to do."""
    without, written, name, found = BROKEN[case]
    site = link_site_packages(tmp_path / 'site', without=without)
    if written:
        write_package(site, *written)
    code = (
        "import runpy, sys; sys.argv = ['mmlape', 'doctor', '--json']\n"
        'from mmlape.doctor import check\n'
        # No second interpreter: what it would say of torch is tested above.
        "check.ask = lambda code, timeout=0: (None, 'not asked')\n"
        "runpy.run_module('mmlape', run_name='__main__')"
    )
    # With `-c` the program has no name; the real command has.
    code = f"import sys; sys.argv = ['mmlape', 'doctor']\n{code}"
    done = run_python(code, site, ROOT, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    checks = {entry['name']: entry for entry in json.loads(done.stdout)['checks']}
    assert checks[name]['state'] == 'error'
    assert found in checks[name]['found']
    assert 'pip install' in checks[name]['advice']
    assert 'Traceback' not in done.stderr and checks['Python']['state'] == 'ok'


def test_only_the_doctor_goes_on_with_half_a_package(monkeypatch):
    for argv, expected in (
        (['/usr/bin/mmlape', 'doctor'], True), (['tools/doctor.py'], True), (['-m', 'doctor'], True),
        (['mmlape', 'train', 'doctor'], False), (['train.py', 'doctor'], False), ([], False), ([''], False),
    ):  # fmt: skip
        monkeypatch.setattr('sys.argv', argv)
        assert stack.is_examined() == expected, argv


@pytest.mark.parametrize(
    ('version', 'holes'),
    [('2.5.1+cu121', 2), ('2.6.0', 1), ('2.9.1', 1), ('2.10.0', 0), ('2.11.0+cpu', 0)],
)
def test_versions_of_torch_whose_safe_reading_is_not(version, holes):
    found = packages._torch_holes(Here(version=version))
    assert sum(c.found.count('CVE-') for c in found) == holes
    assert all(c.state == 'warning' and '2.10' in c.advice for c in found)


def test_two_distributions_over_each_other_and_mixed_families(monkeypatch):
    mmcv = next(p for p in stack.PACKAGES if p.module == 'mmcv')
    monkeypatch.setattr(
        stack, 'metadata_versions', lambda p: {'onedl': '2.3.6', 'original': '2.1.0'}
    )
    found = packages._openmmlab(mmcv)
    assert found.state == 'error' and 'both installed' in found.found
    assert found.advice.startswith('pip uninstall -y mmcv onedl-mmcv, then ')
    kinds = {'mmengine': 'original'}
    monkeypatch.setattr(stack, 'metadata_versions', lambda p: {kinds.get(p.module, 'onedl'): '1'})
    (found,) = packages._family()
    assert found.state == 'warning' and 'mmengine original' in found.found


@pytest.mark.parametrize(
    ('code', 'words'),
    [
        ('answer["x"] = 1', None),
        ('import os, signal; os.kill(os.getpid(), signal.SIGSEGV)', 'ended by signal 11'),
        ('raise ImportError("undefined symbol: _ZN3")', 'undefined symbol: _ZN3'),
    ],
)
def test_what_crashes_does_not_take_the_program_along(code, words):
    answer, why = check.ask(code)
    assert (answer, why) == ({'x': 1}, '') if words is None else answer is None and words in why


def test_operators_of_another_torch(monkeypatch):
    why = '/site/mmcv/_ext.so: undefined symbol: _ZN3c10'
    monkeypatch.setattr(packages, 'ask', lambda code: (None, f'ImportError: {why}'))
    found = packages._operators()
    assert found.state == 'error' and 'compiled for another torch' in found.found
    missing = {'cpu': 'ok', 'cuda': 'nms_impl: implementation for device cuda:0 not found.'}
    monkeypatch.setattr(packages, 'ask', lambda code: (missing, ''))
    found = packages._operators()
    assert (
        found.state == 'error' and 'with CUDA' in found.advice and 'MMCV_WITH_OPS=1' in found.advice
    )


def test_gpus(monkeypatch):
    monkeypatch.setattr(machine, '_nvidia_smi', lambda: (2, '570.1'))
    (found,) = machine._gpus(Here([gpu()]))
    assert found.state == 'ok'
    assert found.found == 'A100, 40 GiB, compute capability 8.0, bf16, driver 570.1'
    (found,) = machine._gpus(Here([gpu(fault='no kernel image is available', bf16=False)]))
    assert found.state == 'error' and 'no bf16' in found.found and 'sm_80' in found.advice
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    (found,) = machine._gpus(Here())
    assert found.state == 'error' and 'built for CPUs' in found.found
    (found,) = machine._gpus(Here(cuda='13.0'))
    assert found.state == 'error' and 'the driver is 570.1' in found.found
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    (found,) = machine._gpus(Here(cuda='13.0'))
    assert found.state == 'warning' and found.advice == 'unset CUDA_VISIBLE_DEVICES'


def loader(workers=4, batch=2, **dataset):
    return Config(
        dict(train_dataloader=dict(num_workers=workers, batch_size=batch, dataset=dataset))
    )


def test_shared_memory_of_a_container(monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=64 * 2**20))
    (found,) = machine._shared_memory(Here(), loader())
    assert found.state == 'warning' and found.found.startswith('64 MiB free; 4 data workers')
    assert '--shm-size=1g' in found.advice
    (found,) = machine._shared_memory(Here(), loader(workers=0))
    assert found.state == 'ok'
    small = [dict(type='Resize', scale=(1333, 800)), dict(type='RandomCrop', crop_size=(64, 64))]
    (found,) = machine._shared_memory(Here(), loader(dataset=dict(pipeline=small)))
    assert found.state == 'ok'


@pytest.mark.parametrize(
    ('threads', 'processes', 'workers', 'words'),
    [
        (None, 1, 2, None), ('1', 4, 1, None), (None, 4, 1, None),
        ('4', 4, 0, 'OMP_NUM_THREADS=1'), ('2', 1, 9, 'num_workers=4'),
    ],
)  # fmt: skip
def test_threads(threads, processes, workers, words, monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    if threads:
        monkeypatch.setenv('OMP_NUM_THREADS', threads)
    found = machine._threads(Here(processes=processes), loader(workers))
    assert found.state == ('warning' if words else 'ok')
    assert not words or words in found.advice


def test_disk_limits_and_encoding(tmp_path, monkeypatch):
    assert machine._disk(None, str(tmp_path / 'not' / 'there')).found.endswith(str(tmp_path))
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=GIB))
    assert machine._disk(None, str(tmp_path)).state == 'warning'
    monkeypatch.setattr(machine.resource, 'getrlimit', lambda which: (256, 1048576))
    assert machine._open_files().advice.startswith('ulimit -n 4096')
    monkeypatch.setattr(machine.locale, 'getpreferredencoding', lambda setlocale: 'ANSI_X3.4-1968')
    assert machine._encoding().state == 'warning'


def test_a_config_whose_data_are_there(commands, tmp_path):
    """The demo's micro Mask R-CNN on data of its form: everything is looked at, nothing is an error."""
    for split in ('train', 'val'):
        write_coco(tmp_path / 'data', coco_content(), split)
    text = (
        f'_base_ = {str(CONFIGS / "demo" / f"{DEMO}.py")!r}\n'
        "data = dict(data_root='data', metainfo=dict(classes=('red cell', 'white cell', \"crow's foot\")))\n"
        "train_dataloader = dict(dataset=dict(\n"
        "    ann_file='annotations/train.json', data_prefix=dict(img='train'), **data))\n"
        "val_dataloader = dict(dataset=dict(ann_file='annotations/val.json', data_prefix=dict(img='val'), **data))\n"
        'test_dataloader = val_dataloader\nauto_scale_lr = dict(base_batch_size=16)\n'
    )
    (tmp_path / 'config.py').write_text(text)
    found, code = answers(commands, 'config.py')
    assert code == 0, [entry for entry in found.values() if entry['state'] == 'error']
    assert '4 images, 12 usable boxes' in found['train data']['found']
    assert 'decoded 4 of 4 images' in found['val data']['found']
    assert found['model']['found'].startswith('MaskRCNN, 2.')
    assert '--auto-scale-lr (makes it 0.00025)' in found['learning rate']['advice']
    (tmp_path / 'data' / 'train' / '2.jpg').unlink()
    found, code = answers(commands, 'config.py')
    assert code == 1 and "images are not in 'data/train': '2.jpg'" in found['train data']['found']


def test_mistakes_in_a_config(commands, tmp_path):
    text = (
        f'_base_ = {str(CONFIGS / "demo" / f"{DEMO}.py")!r}\n'
        "load_from = 'nothing.pth'\noptim_wrapper = dict(optimizer=dict(lr=0.0))\n"
        'model = dict(backbone=dict(vit=dict(qkv_bais=True)))\n'
    )
    (tmp_path / 'config.py').write_text(text)
    found, code = answers(commands, 'config.py')
    assert code == 1
    wrong = {name: entry['found'] for name, entry in found.items() if entry['state'] == 'error'}
    assert 'qkv_bais' in wrong['model']
    assert wrong['weights'] == 'nothing.pth does not exist'
    assert wrong['learning rate'].startswith('0;')
    assert "'data/digit_scenes/annotations' does not exist" in wrong['train data']


@pytest.mark.parametrize('text', ['no_such_config', 'broken.py'])
def test_a_config_that_cannot_be_read(commands, tmp_path, text):
    (tmp_path / 'broken.py').write_text('model = dict(\n')
    found, code = answers(commands, text)
    assert code == 1 and found['config']['state'] == 'error' and text in found['config']['found']
    assert '\n' not in found['config']['found'] and 'model' not in found


def test_weights_by_address(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    address = 'http://127.0.0.1:9/deit.pth'
    found = training._weight(address)
    assert found.state == 'error' and 'docs/cluster.md' in found.advice
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / 'checkpoints' / 'deit.pth').write_bytes(b'')
    assert training._weight(address).state == 'ok'
    assert training._weight('timm:vit_tiny_patch16_224').state == 'ok'
    assert training._weight('timm:vit_tiny_patch61_224').state == 'error'


def test_the_table_has_problems_last_with_what_to_do():
    checks = [
        Check('a', 'error', 'broken', 'mend it'), Check('bcd', 'ok', 'fine'), Check('e', 'warning', 'odd', 'look'),
    ]  # fmt: skip
    assert exit_code(checks) == 1 and exit_code(checks[1:]) == 0
    assert table(checks) == (
        'ok       bcd  fine\n\n'
        'warning  e    odd\n              look\n\n'
        'error    a    broken\n              mend it\n\n'
        '1 warning, 1 error\n'
    )


def test_a_check_that_fails_itself_does_not_hide_the_others():
    def broken():
        raise RuntimeError('so it is\nand more')

    found = check._run([broken, lambda: Check('x', 'ok', 'y'), list])
    assert [(c.name, c.state) for c in found] == [('broken', 'error'), ('x', 'ok')]
    assert found[0].found == 'RuntimeError: so it is'
