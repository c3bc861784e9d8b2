"""How commands end: Ctrl-C, mistakes and failures of other packages with one line; and what they do not show."""

import errno
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from unittest import mock

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from tool_runs import MASK_RCNN, REPO
from torch import nn

from mmlape.__main__ import commands
from mmlape.cli.program import framed, run_program
from mmlape.failures import explained

# In one process: each tool is run as a script, and stopped where it parses its options.
STOPPED = """
import argparse, contextlib, io, json, runpy, sys
def stop(*_, **__):
    raise KeyboardInterrupt
argparse.ArgumentParser.parse_args = stop
found = {}
for path in json.loads(sys.argv[1]):
    sys.argv, said = [path, 'x'], io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            runpy.run_path(path, run_name='__main__')
        except BaseException as end:
            found[path] = type(end).__name__, getattr(end, 'code', None), said.getvalue()
print(json.dumps(found))
"""
SIGNALS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from mmlape.cli.program import command_line, continue_with, run_program
sys.argv = ['x', 'a b']
def main():
    continue_with(command_line('train'))
    try:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError('as NumPy does')
run_program(main)
"""


def output_of(code, *arguments):
    command = [sys.executable, '-c', code, *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True)


def test_ctrl_c_ends_every_command_with_one_line():
    paths = [str(path) for path in commands().values() if path.suffix == '.py']
    paths = [path for path in paths if not path.endswith('timm_run.py')]  # it parses nothing
    done = output_of(STOPPED, json.dumps(paths))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(paths) > 25
    for path, end in found.items():
        assert end == ['SystemExit', 130, 'Stopped.\n'], path


def test_ctrl_c_says_how_to_continue_also_where_it_ends_as_another_error():
    """Twice within a second, as torchrun and the terminal send it."""
    done = output_of(SIGNALS)
    assert done.returncode == 130 and not done.stdout
    assert done.stderr == "Stopped. Continue: `mmlape train 'a b'`\n"


def test_ctrl_c_while_python_ends_is_silent():
    """The handlers of other packages, which were registered before, run last."""
    end = 'import atexit\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n'
    done = output_of(
        SIGNALS.replace('def main', f'{end}def main').replace(
            'run_program(main)', 'run_program(print)'
        )
    )
    assert done.returncode == -signal.SIGINT and not done.stderr


def test_known_noise_is_not_shown_and_all_else_is(capsys):
    def main():
        print('Could not import OneDL. Skipping OneDL datasets.')
        print('07/29 - mmengine - WARNING - "FileClient" will be deprecated in future.')
        print('index created!')
        print('an answer')
        MMLogger.get_instance('noise').info('of no run')
        sys.stdout.write('Done (t=0.01s)\nof two lines\n')
        warnings.warn('faster_coco_eval is not installed, metrics', stacklevel=1)
        warnings.warn('something new', stacklevel=1)
        print('index created!\nan error', file=sys.stderr)

    with pytest.warns(UserWarning, match='something new') as seen:
        run_program(main)
    assert len(seen) == 1
    out, err = capsys.readouterr()
    assert (
        out == 'an answer\nDone (t=0.01s)\nof two lines\n' and err == 'index created!\nan error\n'
    )


def built(kind, registry=MODELS, **options):
    return registry.build(dict(type=kind, **options))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 2, 1)])
        self.fc = nn.Linear(2, 3)

    def forward(self, maps, flat):
        return self.fc(maps) if flat else self.convs[0](maps)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.neck = Head()

    def forward(self, channels, flat):
        return self.neck(torch.ones(1, channels, *[] if flat else [2, 2]), flat)


def fail(error):
    raise error


def without_shared_memory():
    with mock.patch(
        '_multiprocessing.SemLock', side_effect=PermissionError(13, 'Permission denied')
    ):
        multiprocessing.get_context('spawn').Queue()


@pytest.mark.parametrize(
    ('run', 'said'),
    [
        (lambda: fail(torch.OutOfMemoryError('CUDA out of memory. Tried')), '--batch'),
        (lambda: fail(RuntimeError("DefaultCPUAllocator: can't allocate memory")), '--workers'),
        (lambda: fail(RuntimeError('[/gloo/transport/tcp/pair.cc:5] Connection closed by peer')), 'has ended'),
        (lambda: fail(RuntimeError('DataLoader worker (pid 3) is killed by signal: Killed.')), '--shm-size'),
        (lambda: fail(OSError(errno.ENOSPC, 'No space left on device')), 'free some space'),
        (without_shared_memory, '/dev/shm'),
        (lambda: fail(RuntimeError('operator torchvision::nms does not exist')), '`mmlape doctor`'),
        (lambda: fail(ImportError('_ext.so: undefined symbol: _ZN3c10')), '`mmlape doctor`'),
        (lambda: built('LaPE'), "write type='mmlape.LaPE'"),
        (lambda: built('VisionTransfomer'), "did you mean 'mmlape.VisionTransformer'"),
        (lambda: built('mmlape.LN', normalized_shape=3, epss=1), '_delete_=True'),
        (lambda: Detector()(3, False), 'neck.convs.0 takes 4 channels and gets 3: correct in_channels of model.neck '),
        (lambda: Detector()(5, True), 'neck.fc takes 2 channels and gets 5'),
        (lambda: fail(RuntimeError('a bug of ours')), None),
        (lambda: nn.Linear(2, 2)(torch.ones(1, 3)), None),  # no model of a config
    ],
)  # fmt: skip
def test_failures_with_a_known_cure(run, said):
    with pytest.raises((RuntimeError, OSError, ImportError, KeyError, TypeError)) as end:
        run()
    found = explained(end.value)
    assert found is None if said is None else said in found and '\n' not in found


def test_a_failure_ends_with_its_line_and_leaves_the_traceback_in_the_log(tmp_path, digit_commands):
    """A wrong channel number of the first step."""
    short = ('train_cfg.max_iters=1', 'train_dataloader.batch_size=1')
    wrong = ('--cfg-options', *short, 'model.neck.in_channels=[96,96,48,96]')
    said = digit_commands.refused('train.py', MASK_RCNN, '--work-dir', 'run', *wrong)
    assert said.startswith('error: neck.lateral_convs.2.conv takes 48 channels and gets 96: ')
    assert 'model.neck' in said and '`mmlape doctor CONFIG`' in said and '\n' not in said
    (log,) = (tmp_path / 'run').glob('*/*.log')
    assert 'Traceback' in log.read_text() and 'System environment:' in log.read_text()
    said = digit_commands.refused(
        'train.py',
        MASK_RCNN,
        '--work-dir',
        'new',
        '--cfg-options',
        'model.backbone.type=ViTAdapter',
    )
    assert "write type='mmlape.ViTAdapter'" in said and '\n' not in said


def test_other_errors_keep_their_traceback_and_nothing_is_left_changed():
    before = sys.stdout, os.getpid()
    with pytest.raises(RuntimeError, match='a bug'), framed():
        fail(RuntimeError('a bug'))
    assert (sys.stdout, os.getpid()) == before


def test_a_reader_that_has_gone_ends_a_command_without_a_word():
    """As ``| head`` does."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, '-m', 'mmlape', 'help'],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=REPO,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b'')


@pytest.mark.parametrize(
    ('stdout', 'logs', 'code', 'said'),
    [
        ('>/dev/full', False, 1, 'error: the output cannot be written: No space left on device\n'),
        ('>/dev/full', True, 0, ''),
        ('>&-', False, 0, ''),
    ],
)
def test_an_output_that_cannot_be_written(stdout, logs, code, said, tmp_path):
    """Also by a logger, which would print a traceback for each line; a training goes on."""
    (tmp_path / 'writes.py').write_text(
        'import logging, sys\nfrom mmlape.cli.program import run_program\ndef main():\n'
        "    logging.basicConfig(stream=sys.stdout)\n    logging.warning('x' * 9999)\n    print('x')\n"
        f'run_program(main, logs={logs})\n'
    )
    command = ['bash', '-c', f'exec "$0" "$1" {stdout}', sys.executable, tmp_path / 'writes.py']
    environment = {**os.environ, 'PYTHONPATH': str(REPO)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, said)


def test_what_the_encoding_lacks_is_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(written, 'ascii'))
    run_program(lambda: print('3 细胞'))
    assert written.getvalue() == b'3 \\u7ec6\\u80de\n'
