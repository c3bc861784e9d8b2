"""`mmlape train` stops at NaN, and `mmlape replay` says where it begins: detectors, segmentors, two processes."""

import os
import re
import subprocess
import sys

import pytest
import torch
from config_utils import CONFIGS, REPO
from ports import free_port
from tool_runs import MASK_RCNN, SEGMENTER

CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['mmlape', 'non_finite_faults'])
custom_hooks = [dict(type='MakeNonFinite', at=2, {fault})]
train_dataloader = dict(batch_size=2)
train_cfg = dict(max_iters=3, val_interval=9)
default_hooks = dict(checkpoint=dict(interval=1))
"""


def write_config(folder, name, fault):
    base = str(CONFIGS / 'demo' / f'{name}.py')
    (folder / 'config.py').write_text(CONFIG.format(base=base, fault=fault))


@pytest.mark.parametrize(
    ('name', 'module', 'finite'),
    [
        (MASK_RCNN, 'roi_head.mask_head.convs.0.conv', ('loss_rpn_cls', 'loss_cls', 'loss_bbox')),
        (SEGMENTER, 'auxiliary_head.conv_seg', ('decode.loss_ce',)),
    ],
)
def test_the_module_is_named_and_the_losses_are_the_same(
    digit_commands, tmp_path, name, module, finite
):
    write_config(tmp_path, name, f'module={module!r}')
    message = digit_commands.refused('train.py', 'config.py', '--work-dir', 'run')
    assert re.match('error: iteration 2: the loss is not finite', message), message
    assert 'the last checkpoint is' in message and 'iter_1.pth' in message
    capture = torch.load('run/nan_2.pth', weights_only=True)
    assert capture['state'][f'{module}.weight'].isfinite().all()
    with pytest.raises(SystemExit, match="names 'non_finite_faults'"):
        digit_commands('replay.py', 'run/nan_2.pth')
    digit_commands.capsys.readouterr()
    said = digit_commands(
        'replay.py', 'run/nan_2.pth', '--config', str(CONFIGS / 'demo' / f'{name}.py')
    )
    assert 'iteration 2, process 0 of 1: stopped because the loss was not finite' in said
    assert 'the same as in the run, bit for bit' in said
    assert re.search(rf'appears in {re.escape(module)} \(\w+\) \(output: -?inf at', said), said
    for part in finite:
        (values,) = re.findall(rf' {part} +([\d.e-]+) +in the run: ([\d.e-]+)\n', said)
        assert values[0] == values[1] and float(values[0]) > 0


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (None, "there is no file 'nan.pth'"),
        (b'nothing', "'nan.pth' is no file of a training step"),
        (dict(meta=1), 'as mmlape.StopAtNonFiniteHook writes them'),
    ],
)
def test_other_files_are_refused(digit_commands, tmp_path, change, words):
    if isinstance(change, bytes):
        (tmp_path / 'nan.pth').write_bytes(change)
    elif change:
        torch.save(change, tmp_path / 'nan.pth')
    message = digit_commands.refused('replay.py', 'nan.pth')
    assert message.startswith('error: ') and words in message and '\n' not in message


@pytest.mark.slow
def test_every_process_stops_and_the_one_concerned_is_named(tmp_path, digits):
    """A NaN pixel in the second process: both leave, one file, and the statistics of neither have seen it."""
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'digit_scenes').symlink_to(digits)
    write_config(tmp_path, SEGMENTER, 'rank=1')
    paths = [str(REPO / 'tests'), os.environ.get('PYTHONPATH', '')]
    environment = dict(
        os.environ, OMP_NUM_THREADS='1', PYTHON=sys.executable, CUDA_VISIBLE_DEVICES='',
        PYTHONPATH=os.pathsep.join(filter(None, paths)), PORT=str(free_port()),
    )  # fmt: skip
    done = subprocess.run(
        ['bash', str(REPO / 'tools' / 'dist_train.sh'), 'config.py', '2', '--work-dir', 'run'],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    log = done.stdout + done.stderr
    assert done.returncode != 0
    assert len(re.findall('error: iteration 2: the input in process 1 of 2 holds NaN', log)) == 1, (
        log[-4000:]
    )
    files = sorted(path.name for path in (tmp_path / 'run').glob('*.pth'))
    assert files == ['iter_1.pth', 'nan_2.pth']
    capture = torch.load(tmp_path / 'run' / 'nan_2.pth', weights_only=True)
    assert (capture['rank'], capture['processes'], capture['kind']) == (1, 2, 'input')
    assert all(value.isfinite().all() for value in capture['state'].values())
    assert capture['batch']['inputs'][0][1, 5, 7].isnan()
