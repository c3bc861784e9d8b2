"""Run a command line of ``tools/`` in a test, with configs and checkpoints for it."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.visualization import Visualizer
from PIL import Image
from ports import free_port

REPO = Path(__file__).resolve().parents[2]


class Commands:
    """Runs a tool in this process (a new one would import for seconds), in an empty folder."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)
        for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, script, *arguments):
        """What it wrote to the screen."""
        # As in a new process: runs of the same second have the same name, and would share figures and folders.
        for kind in (MessageHub, *Visualizer.__subclasses__()):
            kind._instance_dict.clear()
        path = REPO / 'tools' / script
        self.monkeypatch.setattr(sys, 'argv', [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name='__main__')
        return self.capsys.readouterr().out

    def refused(self, script, *arguments):
        """Its last words when it ends with an error."""
        with pytest.raises(SystemExit) as end:
            self(script, *arguments)
        # argparse has written its message already, others are in the exception.
        if end.value.code == 2:
            return self.capsys.readouterr().err.rstrip('\n')
        return end.value.code


def environment_of_processes(gpus=False):
    """For commands that start processes with the modules of ``tests/helpers``, on a CPU unless ``gpus``."""
    paths = [str(REPO / 'tests' / 'helpers'), os.environ.get('PYTHONPATH', '')]
    environment = dict(
        os.environ, OMP_NUM_THREADS='1', PYTHON=sys.executable, PORT=str(free_port()),
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
    )  # fmt: skip
    if not gpus:
        environment['CUDA_VISIBLE_DEVICES'] = ''
    return environment


def dist_train(folder, config, *options, gpus=False):
    """Run ``tools/dist_train.sh`` with two processes; exit code and output."""
    script = str(REPO / 'tools' / 'dist_train.sh')
    done = subprocess.run(
        ['bash', script, str(config), '2', '--work-dir', 'run', *options],
        cwd=folder, env=environment_of_processes(gpus), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


SEGMENTER = 'segmenter_vit-micro-adapter-lape_mask_digit-scenes'
MASK_RCNN = 'mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes'


def write_config(folder, backbone, **rest):
    path = folder / 'config.py'
    Config(dict(model=dict(backbone=backbone, **rest), default_scope='mmseg')).dump(path)
    return path


def write_checkpoint(folder, model, prefix='backbone.'):
    """What MMEngine's runner saves: the whole model, and its training history."""
    history = HistoryBuffer()
    history.update(1.5, 1)
    state = {prefix + name: value for name, value in model.state_dict().items()}
    state['decode_head.weight'] = torch.zeros(1)
    path = folder / 'iter_1.pth'
    torch.save(
        dict(
            state_dict=state,
            message_hub=dict(log_scalars=dict(loss=history)),
            meta=dict(seed=np.uint32(7), epoch=np.int64(1), rate=np.float64(0.1)),
        ),
        path,
    )
    return path


def check_png(path):
    with Image.open(path) as image:
        assert image.format == 'PNG' and len(np.unique(np.asarray(image))) > 10
        assert image.width >= 600
    assert path.stat().st_size < 200_000
