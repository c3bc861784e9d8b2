"""`mmlape doctor`: what it finds in this environment, in broken ones, on bad machines, and in configs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from config_utils import CONFIGS, coco_content, write_coco
from site_copies import link_site_packages, run_python, write_package
from tool_runs import MASK_RCNN

import mmlape
from mmlape import compatibility, doctor
from mmlape.checkpoints.files import download_path
from mmlape.doctor import Check, exit_code, table

ROOT = Path(mmlape.__file__).resolve().parent.parent
MMCV = next(package for package in compatibility.PACKAGES if package.module == 'mmcv')


def run(name, check):
    (found,) = doctor._run({name: check})
    return found


@pytest.fixture
def answers(commands, monkeypatch, capsys):
    """Runs the command: ``{name: check}`` of its JSON, and the exit code."""
    for name in ('_operators', '_environment', '_package'):  # they take seconds; tested below
        monkeypatch.setattr(doctor, name, lambda *arguments: 'works')

    def ask(*arguments):
        code = 0
        try:
            text = commands('doctor.py', *arguments, '--json')
        except SystemExit as end:
            code, text = end.code, capsys.readouterr().out
        content = json.loads(text)
        assert content['ok'] == (code == 0)
        return {entry['name']: entry for entry in content['checks']}, code

    return ask


@pytest.mark.slow
def test_this_environment_is_well():
    """With MMCV's operators and the toolboxes, which are called and imported."""
    command = [sys.executable, '-m', 'mmlape', 'doctor']
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'ok       mmcv._ext    works' in done.stdout
    assert 'TorchVision' in done.stdout and 'error' not in done.stdout


BROKEN = {
    'no torch': (('torch',), None, 'torch', 'which is not installed: `pip install', ''),
    'no operators': (('mmcv',), ('mmcv', '2.1.0'), 'mmcv._ext', "No module named 'mmcv.ops'", 'MMCV_WITH_OPS=1'),
    'no mmengine, old mmdet': (
        ('mmengine', 'mmdet'), ('mmdet', '3.0.0'), 'mmdet', 'but 3.0.0 is installed: `pip install', ''),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('case', BROKEN)
def test_it_works_where_packages_are_missing_or_broken(case, tmp_path):
    """Where `import mmlape` fails, this is the command that says why, all of it, and what to do."""
    without, written, name, found, advice = BROKEN[case]
    site = link_site_packages(tmp_path / 'site', without=without)
    if written:
        write_package(site[0], *written)
    (tmp_path / 'config.py').touch()
    # With `-c` the program has no name; the real command has.
    code = (
        "import sys; sys.argv = ['mmlape', 'doctor', 'config.py', '--json']\n"
        "import runpy; runpy.run_module('mmlape', run_name='__main__')"
    )
    done = run_python(code, *site, ROOT, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    checks = {entry['name']: entry for entry in json.loads(done.stdout)['checks']}
    assert checks[name]['state'] == 'error'
    assert found in checks[name]['found'] and advice in checks[name]['advice']
    assert 'Traceback' not in done.stderr and checks['Python']['state'] == 'ok'
    assert checks['config']['advice'] == 'fix the packages first'
    if 'no mmengine' in case:
        assert checks['mmengine']['found'] == 'not installed'
        assert 'pip install' in checks['mmengine']['advice']


@pytest.mark.parametrize(
    ('version', 'holes'), [('2.6.0', 1), ('2.9.1', 1), ('2.10.0', 0), ('2.11.0+cpu', 0)]
)  # fmt: skip
def test_versions_of_torch_whose_safe_reading_is_not(version, holes, monkeypatch):
    monkeypatch.setattr(torch, '__version__', version)
    found = run('torch', doctor._torch)
    assert found.found.count('CVE-') == holes
    assert found.state == ('warning' if holes else 'ok') and ('2.10' in found.advice) == bool(holes)


def test_a_torchvision_of_another_torch(monkeypatch, tmp_path):
    text = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / 'torchvision.py').write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'torchvision', raising=False)
    found = run('torch', doctor._torch)
    assert found.state == 'error' and 'torchvision::nms does not exist' in found.found
    assert found.advice.endswith('torchvision --force-reinstall')


def test_versions_of_packages(monkeypatch):
    def check(**answers):
        for name, answer in answers.items():
            monkeypatch.setattr(compatibility, name, lambda package, answer=answer: answer)
        return run('mmcv', lambda: doctor._package(MMCV))

    both = check(metadata_versions={'onedl': '2.3.6', 'original': '2.1.0'})
    assert both.state == 'error' and 'both installed' in both.found
    assert both.advice.startswith('pip uninstall -y mmcv onedl-mmcv, then ')
    newer = check(metadata_versions={'onedl': '2.9.0'}, found_version='2.9.0')
    assert newer.state == 'warning' and 'newer than 2.3.6' in newer.found
    assert check(found_version='2.3.8').found == '2.3.8 (onedl, untested)'


@pytest.mark.parametrize('version', ['4.57.6', '5.17.0'])
def test_a_version_of_transformers_that_mmpretrain_cannot_inherit_from(version, monkeypatch):
    def fail(name):
        assert name == 'mmpretrain.models'
        raise TypeError('NoneType takes no arguments')

    monkeypatch.setattr(doctor.importlib, 'import_module', fail)
    monkeypatch.setitem(sys.modules, 'transformers', SimpleNamespace(__version__=version))
    found = run('mmpretrain', lambda: doctor._package(compatibility.PACKAGES[-1]))
    assert found.state == 'error' and 'NoneType takes no arguments' in found.found
    assert found.advice == ("pip install 'transformers<5'" if version > '5' else '')


@pytest.mark.parametrize(
    ('code', 'words'),
    [
        ('import os, signal; os.kill(os.getpid(), signal.SIGSEGV)', 'exit code -11'),
        (
            'raise ImportError("_ext.so: undefined symbol: _ZN3")',
            'compiled for another torch: .*_ZN3',
        ),
    ],
)
def test_operators_that_crash_do_not_take_the_program_along(code, words, monkeypatch):
    monkeypatch.setattr(doctor, '_OPERATORS', code)
    found = run('mmcv._ext', doctor._operators)
    assert found.state == 'error' and 'MMCV_WITH_OPS=1' in found.advice
    with pytest.raises(ValueError, match=words):
        raise ValueError(found.found)


def test_gpus(monkeypatch, tmp_path):
    def check():
        return run('GPU', doctor._gpus)

    (tmp_path / 'nvidia-smi').write_text('#!/bin/sh\necho "GPU 0: A100"\n')
    (tmp_path / 'nvidia-smi').chmod(0o755)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 0)
    monkeypatch.setenv('PATH', '')
    assert check().found.startswith('none: training runs on the CPU')
    monkeypatch.setenv('PATH', f'{tmp_path}:/bin')
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    assert check().state == 'error' and "driver's CUDA" in check().advice
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    assert check().state == 'warning' and 'unset CUDA_VISIBLE_DEVICES' in check().advice
    facts = SimpleNamespace(name='A100', total_memory=40 * 2**30)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda index: facts)
    monkeypatch.setattr(torch, 'ones', lambda *sizes, device: torch.zeros(sizes))
    assert check() == ('GPU', 'ok', 'A100 (40 GiB)', '')


def test_disk(tmp_path, monkeypatch):
    def check():
        return run('disk', lambda: doctor._disk(str(tmp_path / 'not' / 'there')))

    assert check().state == 'ok' and check().found.endswith(str(tmp_path))
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=2**30))
    assert check().state == 'warning' and check().found.startswith('1.0 GiB')
    monkeypatch.setattr('os.access', lambda path, mode: False)
    assert check().state == 'error' and '--work-dir' in check().advice


def test_a_config_whose_data_are_there(answers, tmp_path):
    """The demo's micro Mask R-CNN on data of its form: everything is looked at, nothing is an error."""
    for split in ('train', 'val'):
        write_coco(tmp_path / 'data', coco_content(), split)
    text = (
        f'_base_ = {str(CONFIGS / "demo" / f"{MASK_RCNN}.py")!r}\n'
        "data = dict(data_root='data', metainfo=dict(classes=('red cell', 'white cell', \"crow's foot\")))\n"
        "train_dataloader = dict(dataset=dict(\n"
        "    ann_file='annotations/train.json', data_prefix=dict(img='train'), **data))\n"
        "val_dataloader = dict(dataset=dict(ann_file='annotations/val.json', data_prefix=dict(img='val'), **data))\n"
        'test_dataloader = val_dataloader\n'
    )
    (tmp_path / 'config.py').write_text(text)
    found, code = answers('config.py')
    assert code == 0, [entry for entry in found.values() if entry['state'] == 'error']
    assert '4 images, 12 usable boxes' in found['train data']['found']
    assert 'decoded 4 of 4 images' in found['val data']['found']
    assert found['model']['found'].startswith('MaskRCNN, 2.')
    assert found['options']['found'] == 'all known'
    assert found['one step']['found'].startswith('works on a random image')
    assert found['weights']['found'].startswith('none')
    (tmp_path / 'data' / 'train' / '2.jpg').unlink()
    found, code = answers('config.py')
    assert code == 1 and "images are not in 'data/train': '2.jpg'" in found['train data']['found']


def test_mistakes_in_a_config(answers, tmp_path):
    text = (
        f'_base_ = {str(CONFIGS / "demo" / f"{MASK_RCNN}.py")!r}\n'
        "load_from = 'nothing.pth'\nmodel = dict(backbone=dict(vit=dict(qkv_bais=True)))\n"
    )
    (tmp_path / 'config.py').write_text(text)
    found, code = answers('config.py', '--work-dir', 'elsewhere')
    assert code == 1 and found['disk']['found'].endswith(str(tmp_path))
    wrong = {name: entry['found'] for name, entry in found.items() if entry['state'] == 'error'}
    assert 'qkv_bais' in wrong['model'] and 'one step' not in found
    assert wrong['weights'] == 'nothing.pth does not exist'
    assert "the data folder 'data/digit_scenes' does not exist" in wrong['train data']


@pytest.mark.parametrize(
    ('change', 'where', 'cure'),
    [
        ('neck=dict(in_channels=[96, 96, 96, 48])', 'one step', 'model.neck in the config: the maps have [96'),
        ('neck=dict(in_channels=[96])', 'one step', 'neck takes another number of maps'),
        ("backbone=dict(type='ViTAdapter')", 'model', "write type='mmlape.ViTAdapter'"),
        ("backbone=dict(type='mmlape.PyramidVisionTransformer')", 'model', '_delete_=True'),
    ],
)  # fmt: skip
def test_what_was_forgotten_in_a_config(answers, tmp_path, change, where, cure):
    base = str(CONFIGS / 'demo' / f'{MASK_RCNN}.py')
    (tmp_path / 'config.py').write_text(f'_base_ = {base!r}\nmodel = dict({change})\n')
    found, code = answers('config.py')
    assert code == 1 and found[where]['state'] == 'error' and cure in found[where]['advice']


def test_a_step_that_cannot_be_tried_is_no_error():
    """The random image may lack what a model reads."""
    cfg = dict(
        default_scope='mmdet', train_dataloader=dict(batch_size=1), model=dict(type='mmdet.GLIP')
    )
    assert run('one step', lambda: doctor._step(cfg)).state == 'warning'
    cfg['default_scope'] = 'mmpretrain'
    assert run('one step', lambda: doctor._step(cfg)).found.startswith('not tried')


def test_advice_stays_within_the_accepted_versions(monkeypatch, tmp_path):
    """Whatever names torch names versions that setup.py accepts."""
    monkeypatch.setattr(torch, '__version__', '2.6.0')
    advice = [run('torch', doctor._torch).advice]
    monkeypatch.setattr(torch, '__version__', '2.16.0')
    advice += [run('torch', doctor._torch).advice]
    (tmp_path / 'torchvision.py').write_text("raise RuntimeError('torchvision::nms')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'torchvision', raising=False)
    advice += [run('torch', doctor._torch).advice]
    monkeypatch.setattr(compatibility, 'torch_version', lambda: '2.4')
    with pytest.raises(ImportError) as old:
        compatibility.check_torch()
    for text in (*advice, str(old.value)):
        assert f'<{compatibility.TORCH_END}' in text.replace('< ', '<'), text


def test_a_config_that_cannot_be_read(answers, tmp_path):
    (tmp_path / 'broken.py').write_text('model = dict(\n')
    found, code = answers('broken.py')
    assert code == 1 and found['config']['state'] == 'error'
    assert 'broken.py' in found['config']['found']
    assert '\n' not in found['config']['found'] and 'model' not in found


def test_weights_by_address(tmp_path, monkeypatch):
    def check():
        backbone = dict(init_cfg=dict(type='Pretrained', checkpoint='http://127.0.0.1:9/deit.pth'))
        return run('weights', lambda: doctor._weights(dict(model=dict(backbone=backbone))))

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    assert check().state == 'error' and 'mmlape docs cluster' in check().advice
    cached = download_path('http://127.0.0.1:9/deit.pth')
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b'')
    assert check().state == 'ok'


def test_weights_that_are_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'w.pth').touch()
    timm = dict(type='mmlape.Pretrained', source='timm', model='deit_small_patch16_224')
    for init_cfg, said in (
        (timm, 'deit_small_patch16_224 of timm'),
        (dict(timm, model=None), 'the arch of timm'),
        (dict(timm, source='mmlape', checkpoint='~/w.pth'), '~/w.pth'),
        (
            dict(timm, source='mmlape', checkpoint='hf://OWNER/NAME'),
            'hf://OWNER/NAME (not checked)',
        ),
    ):
        cfg = dict(model=dict(backbone=dict(vit=dict(init_cfg=init_cfg))))
        assert doctor._weights(cfg).startswith(said)


def test_the_table_has_problems_last_and_a_check_that_fails_hides_no_other():
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

    def broken():
        raise RuntimeError('so it is\nand more')

    found = doctor._run({'broken': broken, 'x': lambda: 'y'})
    assert [(c.name, c.state) for c in found] == [('broken', 'error'), ('x', 'ok')]
    assert found[0].found == 'RuntimeError: so it is and more'
