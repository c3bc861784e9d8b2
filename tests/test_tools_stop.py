"""How a failing training ends: at NaN, when a process hangs, and when a machine is lost."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time

import psutil
import pytest
import torch
from checkpoint_difference import difference
from config_utils import CONFIGS
from mmengine.config import Config
from tool_runs import MASK_RCNN, SEGMENTER, dist_train, environment_of_processes
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


def write_toy(folder, rank, **options):
    imports = dict(imports=['mmlape', 'toy_training', 'training_hooks'])
    cfg = toy_config(folder / 'run', custom_imports=imports, **options)
    cfg.custom_hooks = [dict(type='Hang', at=4, rank=rank, file=str(folder / 'pid'))]
    cfg.dump(folder / 'config.py')


@pytest.mark.slow
def test_a_hang_ends_by_the_timeout_of_the_process_group(tmp_path):
    """Of the first process, which has the store of the group; torchrun ends it."""
    write_toy(tmp_path, rank=0, env_cfg=dict(dist_cfg=dict(backend='nccl', timeout=5)))
    code, log = dist_train(tmp_path, 'config.py')
    assert code != 0
    assert '5000ms' in log, log[-4000:]
    assert not os.path.exists(f'/proc/{(tmp_path / "pid").read_text()}')
    assert (tmp_path / 'run' / 'iter_2.pth').is_file()


@pytest.mark.slow
def test_a_machine_that_is_lost_comes_back(tmp_path):
    """One of two that torchrun has started is killed with all its processes, and its command started again."""
    write_toy(tmp_path, rank=1, model=dict(type='mmlape.ToyBackbone'))
    asked = '-m mmlape train config.py --nodes 2 --max-restarts 1'
    command = [sys.executable, *asked.split()]
    # torchrun's own variable too, where the name of the machine has no address
    here = dict(MASTER_ADDR='127.0.0.1', PET_LOCAL_ADDR='127.0.0.1')
    environ = environment_of_processes() | here
    options = dict(cwd=tmp_path, env=environ, stderr=subprocess.STDOUT)
    machines = []
    try:
        for name in ('first', 'second', 'again'):
            with open(tmp_path / name, 'w') as log:
                machines.append(psutil.Popen(command, stdout=log, **options))
            if name == 'first':  # it has to hold the rendezvous
                wait_for(lambda: accepts(environ['PORT']), machines[0])
            if name == 'second':
                wait_for((tmp_path / 'pid').exists, machines[0])
                lost = psutil.Process(int((tmp_path / 'pid').read_text()))
                assert lost.parent() == machines[1]
                for each in (machines[1], lost):
                    each.kill()
        assert [machines[i].wait(120) for i in (0, 2)] == [0, 0], (tmp_path / 'first').read_text()
    finally:
        for machine in machines:
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in (*machine.children(recursive=True), machine):
                    each.kill()
    (tmp_path / 'run').rename(tmp_path / 'killed')
    # Two machines without a stop, by their ranks.
    asked = '-m mmlape train config.py --nodes 2'
    options |= dict(stdout=subprocess.PIPE, text=True)
    found = []
    for rank in '01':
        options['env'] = environ | dict(NODE_RANK=rank)
        found.append(subprocess.Popen([sys.executable, *asked.split()], **options))
    logs = [machine.communicate(timeout=120)[0] for machine in found]
    assert not any(machine.returncode for machine in found), logs
    one, other = (
        torch.load(tmp_path / name / 'iter_12.pth', weights_only=False)
        for name in ('killed', 'run')
    )
    assert difference(one, other) is None


def wait_for(condition, machine):
    while not condition():
        time.sleep(0.1)
        assert machine.poll() is None


def accepts(port):
    with socket.socket() as probe:
        return not probe.connect_ex(('127.0.0.1', int(port)))
