"""How a failing training ends: at NaN, and when a process hangs."""

import os
import re

import pytest
from config_utils import CONFIGS
from mmengine.config import Config
from tool_runs import MASK_RCNN, SEGMENTER, dist_train
from toy_training import toy_config

CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['mmlape', 'training_hooks'])
custom_hooks = [dict(type='MakeNonFinite', at=2, {fault})]
train_dataloader = dict(batch_size=2)
train_cfg = dict(max_iters=3, val_interval=9)
default_hooks = dict(checkpoint=dict(interval=1))
"""


def write_config(folder, name, fault):
    base = str(CONFIGS / 'demo' / f'{name}.py')
    (folder / 'config.py').write_text(CONFIG.format(base=base, fault=fault))


@pytest.mark.parametrize(
    ('name', 'module'),
    [
        (MASK_RCNN, 'roi_head.mask_head.convs.0.conv'),
        (SEGMENTER, 'auxiliary_head.conv_seg'),
    ],
)
def test_the_module_is_named(digit_commands, tmp_path, name, module):
    write_config(tmp_path, name, f'module={module!r}')
    message = digit_commands.refused('train.py', 'config.py', '--work-dir', 'run')
    says = r'error: iteration 2, process 0 of 1: the loss is not finite \(loss = (nan|inf)\); '
    assert re.match(
        rf'{says}first in {re.escape(module)} \(\w+\); images of the batch: \S+, \S+; the run stops',
        message,
    ), message
    assert 'The last checkpoint is' in message and 'iter_1.pth' in message
    assert '\n' not in message
    files = sorted(path.name for path in (tmp_path / 'run').glob('*.pth'))
    assert files == ['iter_1.pth']


@pytest.mark.slow
def test_every_process_stops_and_the_one_concerned_is_named(digit_commands, tmp_path):
    """A NaN pixel in the second process: both end, and no checkpoint is written."""
    from forked_training import Attempt  # imports all that a training imports

    write_config(tmp_path, SEGMENTER, 'rank=1')
    cfg = Config.fromfile('config.py')
    cfg.work_dir, cfg.launcher = str(tmp_path / 'run'), 'pytorch'
    attempt = Attempt(cfg, processes=2)
    codes, log = attempt.wait(), attempt.log.read_text()
    assert 0 not in codes
    says = r'error: iteration 2, process 1 of 2: an input is not finite \(loss = nan\); first in data_preproc'
    assert len(re.findall(says, log)) == 1, log[-4000:]
    assert [path.name for path in (tmp_path / 'run').glob('*.pth')] == ['iter_1.pth']


@pytest.mark.slow
def test_a_hang_ends_by_the_timeout_of_the_process_group(tmp_path):
    """Of the first process, which has the store of the group; torchrun ends it."""
    cfg = toy_config(
        tmp_path / 'run',
        custom_imports=dict(imports=['mmlape', 'toy_training', 'training_hooks']),
        env_cfg=dict(dist_cfg=dict(backend='nccl', timeout=5)),
    )
    cfg.custom_hooks = [dict(type='Hang', at=4, rank=0, file=str(tmp_path / 'pid'))]
    cfg.dump(tmp_path / 'config.py')
    code, log = dist_train(tmp_path, 'config.py')
    assert code != 0
    assert '5000ms' in log, log[-4000:]
    assert not os.path.exists(f'/proc/{(tmp_path / "pid").read_text()}')
    assert (tmp_path / 'run' / 'iter_2.pth').is_file()
