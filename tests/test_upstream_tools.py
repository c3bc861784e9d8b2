"""MMDetection's own training and test tools, unmodified, run our configs. Those of MMSegmentation: tests/frozen."""

import os
import subprocess
import sys
from pathlib import Path

import mmdet
import pytest
from config_utils import CLASSES, CONFIGS, write_coco

CUSTOM = CONFIGS / 'custom'

pytestmark = pytest.mark.slow


def run_tool(tool: str, *arguments, cwd: Path, **environ) -> str:
    """What ``tools/<tool>.py``, as shipped inside the installed toolbox, prints."""
    folder = Path(mmdet.__file__).parent / '.mim' / 'tools'
    env = {k: v for k, v in os.environ.items() if not k.startswith('LAPE_')}
    env.update({f'LAPE_{name.upper()}': str(value) for name, value in environ.items()})
    path = [str(CONFIGS.parent), env.get('PYTHONPATH', '')]
    env.update(OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join(filter(None, path)))
    command = [sys.executable, str(folder / f'{tool}.py'), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def test_custom_detector_with_upstreams_tools(tmp_path):
    """Data, classes, schedule and CPU operators from the command line; the dumped config resumes without them."""
    data = tmp_path / 'my data'
    for split in ('train', 'val'):
        write_coco(data, split=split)
    config = CUSTOM / 'mask-rcnn_deit-t-adapter-lape_fpn_coco-format.py'
    options = dict(
        classes=','.join(CLASSES), vit='48x4x3', weights='none', num_workers=0, data_root=data,
        max_epochs=1, img_scale='128x96', head_channels=32,
    )  # fmt: skip
    on_cpu = ('--cfg-options', 'default_hooks.cpu.type=mmlape.CpuHook')
    log = run_tool('train', config, '--work-dir', 'run', *on_cpu, cwd=tmp_path, **options)
    assert 'train data (CocoDataset' in log
    assert log.count('mmlape.cpu.optimize: ') == 1 and ' x deformable attention' in log
    assert 'coco/bbox_mAP:' in log
    dumped = tmp_path / 'run' / config.name
    options = ('train_cfg.max_epochs=2', 'param_scheduler.1.end=2')
    resumed = ('--work-dir', 'run', '--resume', '--cfg-options', *options)
    log = run_tool('train', dumped, *resumed, cwd=tmp_path)
    assert 'Epoch(train) [2]' in log
    assert 'Epoch(train) [1]' not in log
    arguments = ('run/epoch_2.pth', '--work-dir', 'test', '--show-dir', 'pictures')
    log = run_tool('test', dumped, *arguments, cwd=tmp_path)
    assert 'coco/bbox_mAP:' in log
    assert len(list((tmp_path / 'test').rglob('pictures/*.jpg'))) == 4
