"""Work dirs that were trained before the package was made smaller (tests/data/frozen) can still be used.

Their configs and checkpoints are what `mmlape train` wrote at commit c0c74e0, the figures what it computed from them:
see tests/data/frozen/README.md. None is made again; where a change is meant, the test says what has changed and why.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import mmdet
import mmseg
import pytest
import torch
from config_utils import REPO, use_scope
from frozen.work_dirs import CHECKPOINTS, RECORD, logged, outputs, restore, shortened
from mmengine.config import Config
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import load_checkpoint

RECORDED = json.loads(RECORD.read_text())
# Losses and metrics of another CPU: a proposal more or less counts for a thousandth.
LOSS = dict(rel=2e-3)
METRIC = dict(abs=1e-4, rel=1e-4)


def shapes(path) -> dict:
    """Names and shapes of the weights in a checkpoint, and how many values the optimizer has of each."""
    checkpoint = torch.load(path, map_location='cpu', weights_only=False)
    states = checkpoint['optimizer']['state'].items()
    return dict(
        weights={name: tuple(value.shape) for name, value in checkpoint['state_dict'].items()},
        averages=sorted(checkpoint.get('ema_state_dict', ())),
        optimizer={key: tuple(value['exp_avg'].shape) for key, value in states},
        groups=[len(group['params']) for group in checkpoint['optimizer']['param_groups']],
    )


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_builds_loads_and_computes_the_same(name, tmp_path):
    """Model, our hooks with every option, weights; the features of a fixed image."""
    path, checkpoint = restore(name, tmp_path)
    cfg = Config.fromfile(path)
    use_scope(cfg.default_scope)
    for hook in [*cfg.default_hooks.values(), *cfg.get('custom_hooks', [])]:
        if hook['type'].startswith('mmlape.'):
            HOOKS.build(hook)
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor')
    model = MODELS.build(dict(cfg.model, data_preprocessor=preprocessor))
    load_checkpoint(model, str(checkpoint), map_location='cpu', strict=True)
    computed, recorded = outputs(model), RECORDED[name]['outputs']
    assert len(computed) == len(recorded)
    for values, expected in zip(computed, recorded, strict=True):
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_test_finds_the_same_metric(name, tmp_path, commands):
    config, checkpoint = restore(name, tmp_path)
    commands('test.py', config, checkpoint, '--work-dir', 'tested')
    recorded = RECORDED[name]['metrics']
    (found,) = logged(tmp_path / 'tested', next(iter(recorded)))
    assert {key: found[key] for key in recorded} == pytest.approx(recorded, **METRIC)


@pytest.mark.slow
@pytest.mark.parametrize('name', CHECKPOINTS)
def test_resume_goes_on_where_it_was(name, tmp_path, commands):
    """Losses need the weights, the optimizer's state, the place in the data and the random numbers of then."""
    config, checkpoint = restore(name, tmp_path)
    before = shapes(checkpoint)
    # DINO's progress: the message hub has it since, which checkpoints keep too.
    before['weights'].pop('steps', None)
    arguments = [str(config), '--resume', *shortened(name)]
    if name == 'custom':
        # In a process of its own, as users have it: after some other test, not known which, this one sees other crops.
        line = [sys.executable, str(REPO / 'tools' / 'train.py'), *arguments]
        environ = dict(os.environ, PYTHONPATH=str(REPO))
        done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    else:
        commands('train.py', *arguments)
    losses = [line['loss'] for line in logged(tmp_path / 'run')]
    assert losses == pytest.approx(RECORDED[name]['losses'], **LOSS)
    written = Path((tmp_path / 'run' / 'last_checkpoint').read_text())
    assert written != checkpoint and shapes(written) == before


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'toolbox'), [('custom', mmseg), ('mmdet', mmdet)])
def test_upstreams_tools_do_the_same(name, toolbox, tmp_path):
    """Its own ``train --resume`` and ``test``, unmodified."""
    config, checkpoint = restore(name, tmp_path)
    folder = Path(toolbox.__file__).parent / '.mim' / 'tools'
    environ = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(REPO))

    def run(tool, *arguments):
        line = [sys.executable, str(folder / tool), str(config), *arguments]
        done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    run('test.py', str(checkpoint), '--work-dir', 'tested', '--show-dir', 'pictures')
    assert any(tmp_path.rglob('pictures/**/*.*g'))
    recorded = RECORDED[name]['metrics']
    (found,) = logged(tmp_path / 'tested', next(iter(recorded)))
    assert {key: found[key] for key in recorded} == pytest.approx(recorded, **METRIC)
    on_cpu = ('default_hooks.cpu.type=mmlape.CpuHook',) if name == 'mmdet' else ()
    options = (*shortened(name), *on_cpu)
    log = run('train.py', '--work-dir', 'run', '--resume', *options)
    assert log.count('mmlape.cpu.optimize: ') == len(on_cpu)
    losses = [line['loss'] for line in logged(tmp_path / 'run')]
    assert losses == pytest.approx(RECORDED[name]['losses'], **LOSS)
