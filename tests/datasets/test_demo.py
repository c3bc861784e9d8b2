"""The demo from end to end on a few images: its files, and that it goes on after Ctrl-C and after being killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / 'tools/demo.py'), '--quick']


def start(folder: Path, *options: str) -> subprocess.Popen:
    command = [*COMMAND, '--work-dir', folder / 'out', '--data-root', folder / 'data', *options]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    return subprocess.Popen(
        [str(each) for each in command],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A shell's background jobs ignore Ctrl-C, and whatever they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen) -> str:
    text, _ = process.communicate(timeout=900)
    assert process.returncode == 0, text
    return text


def wait_for(process: subprocess.Popen, file: Path) -> None:
    for _ in range(6000):
        if file.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    assert file.exists(), process.communicate()[0]


METRICS = {
    'mask_rcnn': {'box AP', 'mask AP'},
    'segmenter': {'mIoU'},
    'retinanet_dtn_pvt': {'box AP'},
}


@pytest.mark.slow
def test_the_demo_from_end_to_end(tmp_path):
    """It goes on after Ctrl-C and after a cut checkpoint, writes table and pictures, and does nothing twice."""
    models = [f'--model={key}' for key in METRICS]
    process = start(tmp_path, *models)
    wait_for(process, tmp_path / 'out/mask_rcnn/iter_2.pth')
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 130, text
    assert 'Traceback' not in text
    assert text.splitlines()[-1].startswith('Stopped. Continue: `mmlape demo ')

    # Killed while it wrote the next checkpoint: that file ends in the middle.
    folder = tmp_path / 'out/mask_rcnn'
    last = max(folder.glob('iter_*.pth'), key=lambda path: int(path.stem.split('_')[1]))
    (folder / 'iter_5.pth').write_bytes(last.read_bytes()[:2000])
    text = finish(start(tmp_path, *models))
    assert 'Mask R-CNN: training    continuing after iteration' in text
    assert text.count('Mask R-CNN: untrained   box AP') == 1
    for word in ('[done before]', 'left in all', 'results.md'):
        assert word in text
    results = json.loads((tmp_path / 'out/results.json').read_text())['tasks']
    assert {key: set(result['trained']) for key, result in results.items()} == METRICS
    for result in results.values():
        for stage in ('untrained', 'trained'):
            assert all(0 <= value <= 1 for value in result[stage].values())
        assert result['iterations'] == 6
        with Image.open(tmp_path / 'out' / result['picture']) as picture:
            assert picture.width > 1000
    # Another call does nothing again, and says the same.
    again = finish(start(tmp_path, *models))
    assert again.count('[done before]') == 9
    assert json.loads((tmp_path / 'out/results.json').read_text())['tasks'] == results
