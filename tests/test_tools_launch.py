"""The launch scripts, with programs in place of torchrun's interpreter and of srun that write down what they get."""

import os
import runpy
import shutil
import signal
import stat
import subprocess

import pytest
from tool_runs import REPO
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

TOOLS = REPO / 'tools'
RECORD = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" > arguments\nprintenv > environment\nexit "${STATUS:-0}"\n'


@pytest.fixture
def launch(tmp_path):
    """Run a script in an empty folder; return its arguments and environment as the program got them."""
    programs = tmp_path / 'bin'
    programs.mkdir()
    for name in ('fake-python', 'srun'):
        (programs / name).write_text(RECORD)
        (programs / name).chmod(0o755)
    folder = tmp_path / 'any folder'
    folder.mkdir()

    def run(script, *arguments, status=0, **environ):
        kept = {name: os.environ[name] for name in ('PATH', 'HOME') if name in os.environ}
        environment = {'PYTHON': 'fake-python', **kept, **environ}
        environment['PATH'] = f'{programs}{os.pathsep}{kept["PATH"]}'
        done = subprocess.run(
            ['bash', str(script), *arguments], cwd=folder, env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        if status:
            return done.stderr
        lines = (folder / 'environment').read_text().splitlines()
        got = dict(line.split('=', 1) for line in lines if '=' in line)
        return (folder / 'arguments').read_text().splitlines(), got

    return run


def after(arguments, option):
    return arguments[arguments.index(option) + 1]


def test_one_machine_and_several(launch):
    options = ('--work-dir', 'my runs/a', '--cfg-options', 'a="x y"')
    arguments, environment = launch(TOOLS / 'dist_train.sh', 'a config.py', '8', *options)
    assert arguments[0] == f'{TOOLS}/launch_parts/torchrun.py'
    one = dict(nproc_per_node='8', nnodes='1', node_rank='0', master_addr='127.0.0.1')
    one['master_port'] = '29500'
    assert {name: after(arguments, f'--{name}') for name in one} == one
    tool = arguments.index(f'{TOOLS}/train.py')
    assert arguments[tool + 1 :] == ['a config.py', *options, '--launcher', 'pytorch']
    assert environment['PYTHONPATH'].split(':')[0] == f'{TOOLS}/..'


def test_folders_where_cd_looks_first(launch, tmp_path):
    """With CDPATH, it prints where it goes."""
    (tmp_path / 'any folder' / 'tools').symlink_to(TOOLS)
    plain, _ = launch('tools/dist_train.sh', 'x', '2')
    assert launch('tools/dist_train.sh', 'x', '2', CDPATH='.')[0] == plain

    machines = dict(NNODES='4', NODE_RANK='2', MASTER_ADDR='10.0.0.7', PORT='29511')
    arguments, _ = launch(TOOLS / 'dist_test.sh', 'config', 'a.pth', '4', '--tta', **machines)
    several = dict(nnodes='4', node_rank='2', master_addr='10.0.0.7', master_port='29511')
    assert {name: after(arguments, f'--{name}') for name in several} == several
    tool = arguments.index(f'{TOOLS}/test.py')
    assert arguments[tool + 1 :] == ['config', 'a.pth', '--tta', '--launcher', 'pytorch']


def test_slurm(launch):
    arguments, environment = launch(
        TOOLS / 'slurm_train.sh', 'gpu', 'my job', 'config', 'work dir', '--resume', '--amp',
        GPUS='16', GPUS_PER_NODE='4', CPUS_PER_TASK='7', SLURM_JOB_ID='123456',
        SRUN_ARGS='--time=24:00:00 --account=lab',
    )  # fmt: skip
    assert arguments == [
        '--partition=gpu', '--job-name=my job', '--gres=gpu:4', '--ntasks=16',
        '--ntasks-per-node=4', '--cpus-per-task=7', '--kill-on-bad-exit=1',
        '--time=24:00:00', '--account=lab', 'fake-python', '-u', f'{TOOLS}/train.py',
        'config', '--work-dir', 'work dir', '--resume', '--amp', '--launcher', 'slurm',
    ]  # fmt: skip
    assert environment['MASTER_PORT'] == str(20000 + 123456 % 20000)
    command = (TOOLS / 'slurm_test.sh', 'gpu', 'job', 'config', 'a.pth')
    arguments, environment = launch(*command)
    numbers = {'--ntasks=8', '--gres=gpu:8', '--ntasks-per-node=8', '--cpus-per-task=5'}
    assert numbers < set(arguments)
    assert arguments[-4:] == ['config', 'a.pth', '--launcher', 'slurm']
    assert 20000 <= int(environment['MASTER_PORT']) < 40000
    arguments, environment = launch(*command, GPUS='2', PORT='29501')
    assert {'--ntasks=2', '--gres=gpu:2', '--ntasks-per-node=2'} < set(arguments)
    assert environment['MASTER_PORT'] == '29501'


@pytest.mark.parametrize(
    ('script', 'arguments', 'environ', 'words'),
    [
        ('dist_train.sh', ['config'], {}, 'usage: mmlape dist_train CONFIG GPUS'),
        ('dist_train.sh', ['config', 'eight'], {}, "GPUS must be a positive number, got 'eight'"),
        ('dist_train.sh', ['config', '--amp'], {}, 'GPUS must be a positive number'),
        ('dist_train.sh', ['config', '2'], dict(NNODES='0'), 'NNODES must be'),
        ('dist_test.sh', ['config', '2'], {}, 'usage: mmlape dist_test CONFIG CHECKPOINT GPUS'),
        ('slurm_train.sh', ['gpu', 'job', 'config'], {}, 'usage: mmlape slurm_train PARTITION'),
        ('slurm_test.sh', ['gpu', 'job', 'config'], {}, 'usage: mmlape slurm_test PARTITION'),
        ('slurm_test.sh', list('abcd'), dict(GPUS='a'), "GPUS must be a positive number, got 'a'"),
        ('slurm_test.sh', list('abcd'), dict(GPUS_PER_NODE='0'), 'GPUS_PER_NODE must be'),
    ],
)
def test_mistakes(launch, script, arguments, environ, words):
    assert words in launch(TOOLS / script, *arguments, status=2, **environ)


def test_the_status_of_the_run_is_that_of_the_script(launch):
    launch(TOOLS / 'dist_train.sh', 'config', '2', status=3, STATUS='3')
    launch(TOOLS / 'slurm_train.sh', 'gpu', 'job', 'config', 'dir', status=4, STATUS='4')


def test_installed_scripts_find_their_tools_and_leave_the_path_alone(launch, tmp_path):
    installed = tmp_path / 'site-packages' / 'mmlape' / '.mim'
    shutil.copytree(TOOLS, installed / 'tools', ignore=shutil.ignore_patterns('__pycache__'))
    arguments, environment = launch(installed / 'tools' / 'dist_train.sh', 'config', '1')
    assert f'{installed}/tools/train.py' in arguments
    assert 'PYTHONPATH' not in environment


def test_scripts_can_be_run_as_programs():
    scripts = sorted(TOOLS.glob('*.sh'))
    assert len(scripts) == 4
    for script in scripts:
        assert script.stat().st_mode & stat.S_IXUSR
        text = script.read_text()
        assert text.startswith('#!/usr/bin/env bash\n') and 'set -euo pipefail' in text
        subprocess.run(['bash', '-n', str(script)], check=True)


@pytest.mark.parametrize(('signalled', 'status'), [(True, 130), (False, 3)])
def test_torchrun_ends_without_a_traceback(signalled, status, monkeypatch, capsys):
    """By Ctrl-C, and where a process has ended with an error."""
    failure = ProcessFailure(1, 7, 3, '')
    error = SignalException('2', signal.SIGINT) if signalled else ChildFailedError('', {1: failure})

    def fail():
        raise error

    monkeypatch.setattr('torch.distributed.run.main', fail)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOLS / 'launch_parts/torchrun.py'), run_name='__main__')
    assert end.value.code == status
    said = '' if signalled else 'process 1 ended with exit code 3\n'
    assert capsys.readouterr().err == said
