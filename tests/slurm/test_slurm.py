"""Trainings in a real SLURM: two nodes, preemption and requeue, a node that dies, jobs beside each other."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from checkpoint_difference import difference
from config_utils import CONFIGS
from tool_runs import SEGMENTER
from toy_training import toy_config

from mmlape.research.datasets import build_digit_scenes

RETINANET = 'retinanet_pvt-micro-dtn_fpn_digit-scenes'
CONFIG = """
_base_ = {base!r}
train_dataloader = dict(batch_size=2)
train_cfg = dict(max_iters=2, val_interval=2)
default_hooks = dict(checkpoint=dict(interval=2))
"""
NO_LOCKS = """
import errno, fcntl

def lockf(file, how):
    raise OSError(errno.ENOLCK, 'No locks available')

fcntl.lockf = lockf
"""


def write_toy(slurm, run, *hooks):
    """A training of a linear layer, saved after 8 of 12 iterations."""
    hooks = [dict(type='EMAHook', momentum=0.1), *hooks]
    cfg = toy_config(
        slurm.folder / run, checkpoint=dict(interval=8), experiment_name='toy', custom_hooks=hooks,
        custom_imports=dict(imports=['mmlape', 'toy_training', 'training_hooks']), log_level='INFO',
        loader=dict(num_workers=1),  # SLURM signals it too
        model_wrapper_cfg=dict(broadcast_buffers=True),  # the loss depends on the model's buffer
    )  # fmt: skip
    cfg.dump(slurm.folder / f'{run}.py')


def train(run, nodes=2):
    return f'mmlape train {run}.py --slurm cpu --nodes {nodes} --work-dir {run}'


def last(folder):
    return torch.load(Path((folder / 'last_checkpoint').read_text()), weights_only=False)


def check_end(slurm, run):
    folders = [slurm.folder / name for name in ('whole', run)]
    assert difference(*map(last, folders)) is None
    names = [sorted(path.name for path in folder.glob('*.pth*')) for folder in folders]
    assert names[0] == names[1]


@pytest.fixture(scope='session')
def whole(slurm):
    write_toy(slurm, 'whole')
    slurm(*train('whole').split())


@pytest.mark.parametrize('name', [RETINANET, SEGMENTER])
def test_two_nodes_train_and_test(slurm, name):
    data = slurm.folder / 'data' / 'digit_scenes'
    if not data.exists():
        build_digit_scenes(data, num_train=8, num_val=2)
    config = CONFIG.format(base=str(CONFIGS / 'demo' / f'{name}.py'))
    (slurm.folder / f'{name}.py').write_text(config)
    trained = slurm('mmlape', 'slurm_train', 'cpu', name, f'{name}.py', name)
    (log,) = (slurm.folder / name).glob('*/*.log')
    assert 'Distributed launcher: slurm' in log.read_text()
    assert 'GPU number: 2' in log.read_text()
    tested = slurm('mmlape', 'slurm_test', 'cpu', name, f'{name}.py', f'{name}/iter_2.pth')
    metrics = [re.findall(r'(?:mIoU|box AP) +([\d.]+)', text)[-1:] for text in (trained, tested)]
    assert metrics[0] == metrics[1] != []


def test_a_partition_without_gpus(slurm):
    says = slurm('mmlape', 'train', SEGMENTER, '--slurm', 'cpu', SRUN_ARGS='', fails=True)
    assert 'Invalid generic resource (gres) specification' in says


@pytest.mark.parametrize('how', ['requeued', 'preempted', 'out of time'])
def test_a_stopped_job_saves_and_ends_as_an_unbroken_one(slurm, whole, how):
    run = how.replace(' ', '_')
    write_toy(slurm, run, dict(type='WaitForSignal', at=5))
    job = slurm.submit(train(run), '--nodes=2', '--exclusive')
    slurm.wait(job, lambda: len([*(slurm.folder / run).glob('waits_?')]) == 2)
    if how == 'requeued':
        slurm('scontrol', 'requeue', job)
    elif how == 'preempted':
        slurm('srun', '--partition=urgent', '--nodes=2', '--exclusive', 'true')
    else:  # less than 120 seconds from now, so SLURM signals at once
        minutes, seconds = map(int, slurm.field(job, 'RunTime').split(':')[1:])
        slurm('scontrol', 'update', f'JobId={job}', f'TimeLimit={minutes + 1 + (seconds > 50)}')
        slurm.wait(job, lambda: slurm.field(job, 'Restarts') == '1')
        slurm('scontrol', 'update', f'JobId={job}', 'TimeLimit=60')
    slurm.wait_for_end(job, restarted=True)
    saved = (slurm.folder / f'job-{job}.log').read_text()
    assert f'SIG{"USR1" if how == "out of time" else "TERM"}: ' in saved
    assert f'resuming from {run}/interrupted.pth' in saved
    check_end(slurm, run)


def test_a_node_that_dies(slurm, whole):
    """Its process and the daemon of the step: the job fails at once, and resumes when it is requeued."""
    pid = slurm.folder / 'pid'
    write_toy(slurm, 'node', dict(type='Hang', at=10, rank=1, file=str(pid)))
    command = f'SRUN_ARGS="--gres=none --wait=2" {train("node")}'  # otherwise 300 seconds
    job = slurm.submit(command, '--nodes=2')
    slurm.wait(job, lambda: pid.exists() and pid.read_text())
    process = int(pid.read_text())
    step = int(Path(f'/proc/{process}/stat').read_text().rsplit(')', 1)[1].split()[1])
    assert Path(f'/proc/{step}/comm').read_text() == 'slurmstepd\n'
    for each in (step, process):
        os.kill(each, signal.SIGKILL)
    slurm.wait_for_end(job, 'FAILED')
    write_toy(slurm, 'node')  # it does not hang again
    slurm('scontrol', 'requeue', job)
    slurm.wait_for_end(job, restarted=True)
    assert 'resuming from node/iter_8.pth' in (slurm.folder / f'job-{job}.log').read_text()
    check_end(slurm, 'node')


def test_two_jobs_in_one_work_dir(slurm):
    write_toy(slurm, 'both', dict(type='WaitForSignal', at=5))
    command = train('both', nodes=1)
    first = slurm.submit(command, '--nodes=1')
    slurm.wait(first, (slurm.folder / 'both' / 'waits_0').exists)
    says = slurm(*command.split(), fails=True)
    assert re.search(r'error: another training \(process \d+ on .+\) uses both: ', says)
    slurm('scancel', '--signal=KILL', first)
    slurm.wait_for_end(first, 'CANCELLED')


def test_an_array_of_seeds_where_there_are_no_locks(slurm):
    """The option and the end of the command are those of the page."""
    write_toy(slurm, 'seeds')
    (slurm.folder / 'sitecustomize.py').write_text(NO_LOCKS)
    found = re.search(
        r'`#SBATCH (--array=\S+)`.*?`(--work-dir \S+ --seed \S+)`', slurm.page, re.DOTALL
    )
    path = os.pathsep.join([str(slurm.folder), slurm.environment['PYTHONPATH']])
    command = f'PYTHONPATH={path} mmlape train seeds.py --slurm cpu {found[2]}'
    job = slurm.submit(command, '--nodes=1', found[1].replace('125', '122'))
    slurm.wait(job, lambda: not slurm('squeue', '--noheader', f'--jobs={job}'))
    for seed in (121, 122):
        folder = slurm.folder / 'work_dirs' / 'lape-t' / f'seed_{seed}'
        assert last(folder)['meta']['seed'] == seed
        (log,) = folder.glob('*/*.log')
        assert 'is not protected from a second training' in log.read_text()
