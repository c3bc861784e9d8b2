"""How the processes of a run find each other, and what they agree on."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from toy_training import toy_config

from mmlape.cli import (
    all_see,
    joined,
    lock_work_dir,
    main_process_says,
    stop_with_message,
)
from mmlape.config_text import PlainConfig
from mmlape.training import processes


@pytest.fixture
def calls(monkeypatch):
    """What would have been called, in order."""
    made = []

    def record(name):
        return lambda *arguments, **options: made.append((name, arguments, options))

    monkeypatch.setattr(processes, 'init_dist', record('init_dist'))
    monkeypatch.setattr(processes, 'set_multi_processing', record('set_multi_processing'))
    for name in ('RANK', 'SLURM_STEP_NODELIST', 'OMPI_COMM_WORLD_LOCAL_RANK'):
        monkeypatch.setenv(name, '0')
    monkeypatch.setattr(torch.distributed, 'init_process_group', record('init_process_group'))
    return made


def config(launcher, **rest):
    env_cfg = dict(mp_cfg=dict(mp_start_method='fork'), dist_cfg=dict(backend='nccl', timeout=60))
    return Config(dict(launcher=launcher, env_cfg=env_cfg, **rest))


def test_with_gpus_it_is_what_the_runner_would_do(calls, monkeypatch):
    with joined(config('none')):
        pass
    assert calls == []
    monkeypatch.setattr(processes, 'get_device', lambda: 'cuda')
    cfg = config('slurm')
    with joined(cfg):
        pass
    assert [name for name, _, _ in calls] == ['set_multi_processing', 'init_dist']
    assert calls[0][2] == dict(mp_start_method='fork', distributed=True)
    assert calls[1][1:] == (('slurm',), dict(backend='nccl', timeout=60))
    assert 'model_wrapper_cfg' not in cfg


def test_without_a_gpu_processes_use_gloo_and_the_wrapper_names_no_device(calls, monkeypatch):
    monkeypatch.setattr(processes, 'get_device', lambda: 'cpu')
    cfg = config('pytorch', find_unused_parameters=True, model_wrapper_cfg=dict(static_graph=True))
    with joined(cfg):
        pass
    ((name, arguments, options),) = calls
    assert (name, arguments) == ('init_process_group', ('gloo',))
    assert options['timeout'].total_seconds() == 60
    assert cfg.model_wrapper_cfg.device_ids is None
    assert cfg.model_wrapper_cfg.find_unused_parameters and cfg.model_wrapper_cfg.static_graph
    sharded = config('pytorch', strategy=dict(type='mmlape.FSDPStrategy'))
    with joined(sharded):
        pass
    assert 'model_wrapper_cfg' not in sharded
    with pytest.raises(ValueError, match='--launcher mpi needs GPUs'), joined(config('mpi')):
        pass


@pytest.mark.parametrize(
    ('launcher', 'program'), [('pytorch', 'torchrun'), ('slurm', 'srun'), ('mpi', 'mpirun')]
)
@pytest.mark.parametrize('device', ['cpu', 'cuda'])
def test_processes_that_no_launcher_has_started(launcher, program, device, calls, monkeypatch):
    monkeypatch.setattr(processes, 'get_device', lambda: device)
    for name in ('RANK', 'SLURM_STEP_NODELIST', 'OMPI_COMM_WORLD_LOCAL_RANK'):
        monkeypatch.delenv(name)
    says = f'--launcher {launcher} is for processes that {program} has started'
    with pytest.raises(ValueError, match=says), joined(config(launcher)):
        pass
    assert calls == []


def test_without_a_gpu_ranks_and_the_address_are_those_of_slurm(calls, monkeypatch, tmp_path):
    """Those of the step, which may have fewer nodes than its job. tests/slurm runs it in a real one."""
    monkeypatch.setattr(processes, 'get_device', lambda: 'cpu')
    job = dict(PROCID='5', LOCALID='1', NTASKS='8', NODELIST='n[1-4]')
    names = ('MASTER_ADDR', 'MASTER_PORT', 'RANK', 'LOCAL_RANK', 'WORLD_SIZE')
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in job.items():
        monkeypatch.setenv(f'SLURM_{name}', value)
    scontrol = tmp_path / 'scontrol'
    scontrol.write_text(
        '#!/bin/sh\n'
        'if [ "$*" = "show hostnames n[3-4]" ]; then printf "n3\\nn4\\n"; else echo "no $3" >&2; exit 1; fi\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}{os.pathsep}{os.environ["PATH"]}')
    says = 'scontrol show hostnames 0: no 0; or set MASTER_ADDR'
    with pytest.raises(ValueError, match=says), joined(config('slurm')):
        pass
    monkeypatch.setenv('SLURM_STEP_NODELIST', 'n[3-4]')
    with joined(config('slurm')):
        pass
    assert [os.environ.pop(name) for name in names] == ['n3', '29500', '5', '1', '8']
    assert [name for name, _, _ in calls] == ['init_process_group']
    monkeypatch.setenv('MASTER_ADDR', 'n4')
    monkeypatch.setenv('MASTER_PORT', '1234')
    with joined(config('slurm')):
        pass
    assert [os.environ.pop(name) for name in names] == ['n4', '1234', '5', '1', '8']


def test_what_processes_agree_on(monkeypatch):
    assert main_process_says(lambda: ('a', 1)) == ('a', 1)

    def fails():
        raise PermissionError('not yours')

    with pytest.raises(ValueError, match=r'^not yours$'):
        main_process_says(fails)
    all_see(True, 'not there')
    monkeypatch.setattr(processes, 'all_gather_object', lambda mine: [True, mine, True, False])
    with pytest.raises(ValueError, match=r'process 1, 3 of 4: not there'):
        all_see(False, 'not there')


def test_mistakes_end_with_a_line_and_others_with_a_traceback(monkeypatch):
    with pytest.raises(SystemExit, match='error: so it is'), stop_with_message():
        raise ValueError('so it is')
    with pytest.raises(RuntimeError), stop_with_message():
        raise RuntimeError
    monkeypatch.setattr('mmlape.cli.program._rank', lambda: 1)
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    with pytest.raises(SystemExit) as end, stop_with_message():
        raise ValueError('said by process 0')
    assert end.value.code == 1
    monkeypatch.setenv('LOCAL_RANK', '0')
    with pytest.raises(SystemExit, match='error: on this machine'), stop_with_message():
        raise ValueError('on this machine')


HOLDER = """
import multiprocessing, sys, time
from mmlape.cli import lock_work_dir
lock_work_dir(sys.argv[1])
worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))
worker.start()
print(worker.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_work_dir_is_for_one_training_at_a_time(tmp_path):
    """A killed one leaves no lock behind, nor do data workers that outlive it."""
    folder = str(tmp_path / 'runs')
    command = [sys.executable, '-c', HOLDER, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        worker = int(holder.stdout.readline())
        with pytest.raises(
            ValueError, match=rf'another training \(process {holder.pid} on .+uses {folder}'
        ):
            lock_work_dir(folder)
        holder.kill()
        holder.wait()
        lock_work_dir(folder)
        lock_work_dir(folder)  # this process has it
        os.kill(worker, signal.SIGKILL)


def test_a_file_system_without_locks_is_noted(tmp_path, monkeypatch):
    def lockf(file, how):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr('fcntl.lockf', lockf)
    (note,) = lock_work_dir(str(tmp_path))
    assert note.startswith(f'{tmp_path} is not protected') and 'No locks available' in note


def test_a_lock_of_another_machine(tmp_path, monkeypatch):
    """Some file systems say that it is not permitted."""

    def lockf(file, how):
        raise PermissionError(errno.EACCES, 'Permission denied')

    Path(tmp_path, '.lock').write_text('process 123456789 on a-machine-of-a-long-name\n')
    lock_work_dir(str(tmp_path))
    monkeypatch.setattr('fcntl.lockf', lockf)
    owner = re.escape(f'(process {os.getpid()} on {socket.gethostname()})')
    with pytest.raises(ValueError, match=f'another training {owner} uses'):
        lock_work_dir(str(tmp_path))


def test_the_operators_for_cpus_are_put_in_once(tmp_path):
    cfg = toy_config(tmp_path)
    cfg.custom_hooks = [dict(type='mmlape.CpuHook')]
    runner = processes.make_runner(cfg)
    processes.optimize_on_cpu(runner)
    assert [type(hook).__name__ for hook in runner.hooks].count('CpuHook') == 1


@pytest.mark.parametrize('runner_type', ['Runner', Runner])
def test_a_runner_without_some_default_hooks_and_with_a_shorter_screen(
    runner_type, tmp_path, capsys
):
    cfg = toy_config(tmp_path)
    cfg.runner_type = runner_type
    cfg.log_level = 'INFO'
    cfg.default_hooks = dict(
        cfg.get('default_hooks') or {}, report=None, exact_resume=None, timer=None
    )
    runner = processes.make_runner(cfg)
    names = {type(hook).__name__ for hook in runner.hooks}
    assert names >= {'LoggerHook', 'RuntimeInfoHook'} and 'IterTimerHook' not in names
    assert type(runner).__name__ == 'Runner' and isinstance(runner.cfg, PlainConfig)
    (log,) = tmp_path.rglob('*.log')
    assert 'Config:\n' in log.read_text() and 'Config:\n' not in ''.join(capsys.readouterr())


@pytest.mark.parametrize(
    ('constructor', 'notes'),
    [
        ('DefaultOptimWrapperConstructor', ['custom_keys without a parameter: nothing']),
        ('mmlape.LayerDecayOptimizerConstructor', []),
    ],
)
def test_custom_keys_that_fit_nothing_are_noted(constructor, notes, tmp_path, monkeypatch):
    cfg = toy_config(tmp_path)
    keys = dict(layer=dict(lr_mult=2), nothing=dict(lr_mult=3))
    cfg.optim_wrapper.merge(dict(constructor=constructor, paramwise_cfg=dict(custom_keys=keys)))
    runner, said = processes.make_runner(cfg), []
    monkeypatch.setattr(runner.logger, 'warning', said.append)
    processes.log_notes(runner, ['first'])
    assert said == ['first', *notes]
