"""Several processes: what torchrun and srun are asked to start, and the scripts with MMDetection's names."""

import os
import runpy
import shutil
import signal
import socket
import stat
import subprocess
import sys

import pytest
from tool_runs import MASK_RCNN, REPO
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

TOOLS = REPO / 'tools'
VARIABLES = ('NODE_RANK', 'MASTER_ADDR', 'PORT', 'CPUS_PER_TASK', 'SRUN_ARGS', 'SLURM_JOB_ID')
RECORD = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" > arguments\nprintenv > environment\nexit "${STATUS:-0}"\n'


@pytest.fixture
def started(monkeypatch):
    """Run a command; return the arguments with which torchrun or srun would start the processes."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ('MASTER_PORT', 'OMP_NUM_THREADS'):
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)

    def run(command, **environ):
        got = []

        def exec_(_, arguments):
            got.extend(arguments)
            raise SystemExit

        monkeypatch.setattr('torch.distributed.run.main', got.extend)
        monkeypatch.setattr('os.execvp', exec_)
        monkeypatch.setattr('shutil.which', lambda name: f'/usr/bin/{name}')
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        tool, *arguments = command.split()
        monkeypatch.setattr(sys, 'argv', [str(TOOLS / f'{tool}.py'), *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(TOOLS / f'{tool}.py'), run_name='__main__')
        assert not end.value.code
        return got

    return run


def test_one_machine(started):
    options = f'{MASK_RCNN} --work-dir runs/a --cfg-options a=1 b=2'
    program = ['-m', 'mmlape', 'train', *options.split(), '--launcher=pytorch']
    got = started(f'train {options} --gpus 8')
    port = int(got.pop(4).removeprefix('--master-port='))  # a free one
    one = ['--node-rank=0', '--master-addr=127.0.0.1']
    assert got == ['--nnodes=1', '--nproc-per-node=8', *one, *program] and port != 29500
    assert '--master-port=29511' in started(f'train {options} --gpus 8 --nodes 1', PORT='29511')
    assert os.environ['OMP_NUM_THREADS'] == '1'


def test_several_machines(started, capsys):
    here = dict(NODE_RANK='2', MASTER_ADDR='10.0.0.7', PORT='29511')
    assert started(f'test --nodes 4 {MASK_RCNN} --gpus=4 https://host/a.pth --tta', **here) == [
        '--nnodes=4', '--nproc-per-node=4', '--node-rank=2', '--master-addr=10.0.0.7', '--master-port=29511',
        '-m', 'mmlape', 'test', '--launcher=pytorch', MASK_RCNN, '--launcher=pytorch', 'https://host/a.pth', '--tta',
    ]  # fmt: skip
    assert capsys.readouterr().err == 'waiting for 4 machines at 10.0.0.7:29511\n'


@pytest.mark.parametrize(('given', 'resume'), [('', ['--resume']), (' --resume=auto', [])])
def test_machines_that_come_back(started, given, resume):
    """They join the rendezvous again, whatever their number, and resume."""
    asked = f'train {MASK_RCNN}{given} --gpus 2 --nodes 1:3 --max-restarts 5'
    assert started(asked, MASTER_ADDR='localhost', NODE_RANK='1') == [
        '--nnodes=1:3', '--nproc-per-node=2',
        '--rdzv-backend=c10d', '--rdzv-endpoint=localhost:29500', '--max-restarts=5',
        '-m', 'mmlape', 'train', MASK_RCNN, *given.split(), *['--launcher=pytorch'] * 3, *resume,
    ]  # fmt: skip


def test_slurm(started):
    environ = dict(
        CPUS_PER_TASK='7', SLURM_JOB_ID='123456', SRUN_ARGS="--time=24:00:00 --comment='a b'"
    )
    asked = f'train {MASK_RCNN} --slurm gpu --gpus 4 --nodes 2 --work-dir runs/a --amp'
    program = [sys.executable, '-u', '-m', 'mmlape', 'train', MASK_RCNN, *['--launcher=slurm'] * 3]
    assert started(asked, **environ) == [
        'srun', '--partition=gpu', f'--job-name={MASK_RCNN}', '--gres=gpu:4', '--ntasks=8',
        '--ntasks-per-node=4', '--cpus-per-task=7', '--kill-on-bad-exit=1', '--wait=300',
        '--time=24:00:00', '--comment=a b', *program, '--work-dir', 'runs/a', '--amp',
    ]  # fmt: skip
    assert os.environ['MASTER_PORT'] == str(20000 + 123456 % 20000)


@pytest.mark.parametrize('given', ['--gpus 2', '--gpus=2', '--gp 2', '--nodes 1 --gpu=2'])
def test_options_of_open_length_before_those_of_processes(given, started):
    """They do not take the config."""
    for option in ('--resume', '--cfg-options a=1', '--auto-scale-lr'):
        got = started(f'train {option} {given} {MASK_RCNN}')
        first, *rest = got[got.index('train') + 1 + len(option.split()) :]
        assert (first, rest[-1]) == ('--launcher=pytorch', MASK_RCNN)
        assert '--gpus' not in ' '.join(rest) and '--nproc-per-node=2' in got


def test_slurm_by_default(started):
    got = started(f'test {MASK_RCNN} https://host/a.pth --slurm gpu', PORT='29501')
    assert {'--ntasks=1', '--gres=gpu:1', '--ntasks-per-node=1', '--cpus-per-task=5'} < {*got}
    assert os.environ['MASTER_PORT'] == '29501'


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ('--gpus 0', '--gpus: must be at least 1, got 0'),
        ('--gpus all', "--gpus: must be an integer, got 'all'"),
        ('--nodes 2:1', "--nodes: must be a number of machines, or MIN:MAX, got '2:1'"),
        ('--nodes 0', "--nodes: must be a number of machines, or MIN:MAX, got '0'"),
        ('--nodes 1:2', '--nodes MIN:MAX needs --max-restarts'),
        ('--slurm gpu --max-restarts 2', 'SLURM requeues jobs'),
        ('--slurm gpu --nodes 1:2', 'SLURM requeues jobs'),
        ('--gpus 2 --launcher pytorch', 'leave out --launcher'),
        ('--nodes 2', '--nodes 2 without SLURM needs NODE_RANK and MASTER_ADDR'),
        ('--nodes 2 --max-restarts 1', '--nodes 2 without SLURM needs MASTER_ADDR'),
        ('--slurm gpu', '--slurm needs srun'),
    ],
)
def test_mistakes(options, words, monkeypatch, capsys):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr('shutil.which', lambda name: None)
    monkeypatch.setattr(sys, 'argv', ['train.py', MASK_RCNN, *options.split()])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOLS / 'train.py'), run_name='__main__')
    said = capsys.readouterr().err
    assert end.value.code == 2 and words in said and said.count('\n') == 1


@pytest.mark.parametrize(
    ('options', 'name', 'value', 'words'),
    [
        ('--gpus 2', 'PORT', 'http', "PORT must be a number from 1 to 65535, got 'http'"),
        ('--gpus 2', 'PORT', '65536', "PORT must be a number from 1 to 65535, got '65536'"),
        ('--gpus 2', 'NODE_RANK', '-1', "NODE_RANK must be a number from 0 to 0, got '-1'"),
        ('--gpus 2 --nodes 3', 'NODE_RANK', '3', "NODE_RANK must be a number from 0 to 2, got '3'"),
        (
            '--nodes 2 --max-restarts 1',
            'MASTER_ADDR',
            'no machine',
            "MASTER_ADDR must be the address of a machine, got 'no machine': ",
        ),
        (
            '--slurm gpu',
            'CPUS_PER_TASK',
            '0',
            "CPUS_PER_TASK must be a number of at least 1, got '0'",
        ),
        ('--slurm gpu', 'PORT', '', "PORT must be a number from 1 to 65535, got ''"),
        (
            '--slurm gpu',
            'SRUN_ARGS',
            "--comment='x",
            "SRUN_ARGS=--comment='x: No closing quotation",
        ),
    ],
)
def test_mistakes_in_the_environment(options, name, value, words, monkeypatch, capsys):
    monkeypatch.setattr('shutil.which', lambda name: name)
    monkeypatch.setenv('MASTER_ADDR', 'localhost')
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, 'argv', ['train.py', MASK_RCNN, *options.split()])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOLS / 'train.py'), run_name='__main__')
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith(f'error: {words}') and said.count('\n') == 1


@pytest.mark.parametrize(('signalled', 'status'), [(True, 130), (False, 3)])
def test_torchrun_ends_without_a_traceback(signalled, status, monkeypatch, capsys):
    """By Ctrl-C, and where a process has ended with an error."""
    failure = ProcessFailure(1, 7, 3, '')
    error = SignalException('2', signal.SIGINT) if signalled else ChildFailedError('', {1: failure})

    def fail(_):
        raise error

    monkeypatch.setattr('torch.distributed.run.main', fail)
    monkeypatch.setattr(sys, 'argv', ['train.py', MASK_RCNN, '--gpus', '2'])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOLS / 'train.py'), run_name='__main__')
    assert end.value.code == status
    said = '' if signalled else 'process 1 ended with exit code 3\n'
    assert capsys.readouterr().err == said


def test_a_port_in_use(monkeypatch):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv('PORT', str(port))
        monkeypatch.setattr(sys, 'argv', ['train.py', MASK_RCNN, '--gpus', '2'])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(TOOLS / 'train.py'), run_name='__main__')
    said = str(end.value.code)
    assert said.startswith(f'error: 127.0.0.1:{port} (MASTER_ADDR:PORT): ') and 'in use' in said
    assert '\n' not in said


@pytest.fixture
def script(tmp_path):
    """Run a script in an empty folder; return the arguments and the environment that `python` got."""
    programs = tmp_path / 'bin'
    programs.mkdir()
    (programs / 'fake-python').write_text(RECORD)
    (programs / 'fake-python').chmod(0o755)
    folder = tmp_path / 'any folder'
    folder.mkdir()

    def run(path, *arguments, status=0, **environ):
        kept = {name: os.environ[name] for name in ('PATH', 'HOME') if name in os.environ}
        environment = {'PYTHON': 'fake-python', **kept, **environ}
        environment['PATH'] = f'{programs}{os.pathsep}{kept["PATH"]}'
        done = subprocess.run(
            ['bash', str(path), *arguments], cwd=folder, env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        if status:
            return done.stderr
        lines = (folder / 'environment').read_text().splitlines()
        got = dict(line.split('=', 1) for line in lines if '=' in line)
        return (folder / 'arguments').read_text().splitlines(), got

    return run


def test_scripts_of_torchrun(script):
    options = ['--work-dir', 'my runs/a', '--cfg-options', 'a="x y"']
    got, environment = script(TOOLS / 'dist_train.sh', 'a config.py', '8', *options)
    count = ['--gpus', '8', '--nodes', '1']
    assert got == ['-m', 'mmlape', 'train', 'a config.py', *count, *options]
    assert environment['PYTHONPATH'].split(':')[0] == f'{TOOLS}/..'
    got, _ = script(TOOLS / 'dist_test.sh', 'config', 'a.pth', '4', '--tta', NNODES='3')
    assert got == [
        '-m',
        'mmlape',
        'test',
        'config',
        'a.pth',
        '--gpus',
        '4',
        '--nodes',
        '3',
        '--tta',
    ]


def test_scripts_of_slurm(script):
    got, environment = script(
        TOOLS / 'slurm_train.sh', 'gpu', 'my job', 'config', 'work dir', '--resume',
        GPUS='16', GPUS_PER_NODE='4', SRUN_ARGS='--time=1',
    )  # fmt: skip
    assert got == [
        '-m', 'mmlape', 'train', 'config', '--work-dir', 'work dir', '--resume',
        '--slurm', 'gpu', '--gpus', '4', '--nodes', '4',
    ]  # fmt: skip
    assert environment['SRUN_ARGS'] == '--job-name=my\\ job --time=1'
    got, _ = script(TOOLS / 'slurm_test.sh', 'gpu', 'job', 'config', 'a.pth', GPUS='2')
    assert got[2:5] == ['test', 'config', 'a.pth']
    assert got[-4:] == ['--gpus', '2', '--nodes', '1']
    got, _ = script(TOOLS / 'slurm_test.sh', 'gpu', 'job', 'config', 'a.pth')
    assert got[-4:] == ['--gpus', '8', '--nodes', '1']


def test_folders_where_cd_looks_first(script, tmp_path):
    """With CDPATH, it prints where it goes."""
    (tmp_path / 'any folder' / 'tools').symlink_to(TOOLS)
    plain, _ = script('tools/dist_train.sh', 'x', '2')
    assert script('tools/dist_train.sh', 'x', '2', CDPATH='.')[0] == plain


@pytest.mark.parametrize(
    ('name', 'arguments', 'environ', 'words'),
    [
        ('dist_train', ['config'], {}, 'usage: mmlape dist_train CONFIG GPUS'),
        ('dist_test', ['config', '2'], {}, 'usage: mmlape dist_test CONFIG CHECKPOINT GPUS'),
        ('slurm_train', ['gpu', 'job', 'config'], {}, 'usage: mmlape slurm_train PARTITION'),
        ('slurm_test', ['gpu', 'job', 'config'], {}, 'usage: mmlape slurm_test PARTITION'),
        ('slurm_test', list('abcd'), dict(GPUS='a'), "GPUS must be a positive number, got 'a'"),
        ('slurm_test', list('abcd'), dict(GPUS_PER_NODE='0'), 'GPUS_PER_NODE must be'),
        ('slurm_test', list('abcd'), dict(GPUS='9'), 'must be a multiple of GPUS_PER_NODE (8)'),
    ],
)
def test_mistakes_of_scripts(script, name, arguments, environ, words):
    assert words in script(TOOLS / f'{name}.sh', *arguments, status=2, **environ)


def test_the_status_of_the_run_is_that_of_the_script(script):
    script(TOOLS / 'dist_train.sh', 'config', '2', status=3, STATUS='3')


def test_installed_scripts_leave_the_path_alone(script, tmp_path):
    installed = tmp_path / 'site-packages' / 'mmlape' / '.mim'
    shutil.copytree(TOOLS, installed / 'tools', ignore=shutil.ignore_patterns('__pycache__'))
    _, environment = script(installed / 'tools' / 'dist_train.sh', 'config', '1')
    assert 'PYTHONPATH' not in environment


def test_scripts_can_be_run_as_programs():
    scripts = sorted(TOOLS.glob('*.sh'))
    assert len(scripts) == 4
    for path in scripts:
        assert path.stat().st_mode & stat.S_IXUSR
        text = path.read_text()
        assert text.startswith('#!/usr/bin/env bash\n') and 'set -euo pipefail' in text
        subprocess.run(['bash', '-n', str(path)], check=True)
