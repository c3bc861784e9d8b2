"""The notebooks run from top to bottom, with fewer and shorter trainings."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from config_utils import REPO
from nbclient import NotebookClient

NOTEBOOKS = REPO / 'examples'
# What a reader's settings become.
SHORTER = {
    'first_model': {'EPOCHS = 8': 'EPOCHS = 1', 'IMAGES = 600': 'IMAGES = 12'},
    'compare_joinings': {
        'EPOCHS = 20': 'EPOCHS = 1',
        "['DefaultJoining', 'SharedJoining', 'LaPE']": "['DefaultJoining', 'LaPE']",
    },
}


def test_every_notebook_is_run():
    assert {path.stem for path in NOTEBOOKS.glob('*.ipynb')} == SHORTER.keys()


@pytest.mark.slow
@pytest.mark.parametrize('name', SHORTER)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    notebook = nbformat.read(NOTEBOOKS / f'{name}.ipynb', 4)
    for old, new in SHORTER[name].items():
        cells = [cell for cell in notebook.cells if old in cell.source]
        assert len(cells) == 1, old
        cells[0].source = cells[0].source.replace(old, new)
    folder = Path(sys.executable).parent  # the command `mmlape`
    monkeypatch.setenv('PATH', f'{folder}{os.pathsep}{os.environ["PATH"]}')
    monkeypatch.setenv('PYTHONPATH', str(REPO))
    place = dict(metadata=dict(path=str(tmp_path)))
    NotebookClient(notebook, timeout=900, kernel_name='python3', resources=place).execute()
    shown = [
        kind
        for cell in notebook.cells
        for out in cell.get('outputs', ())
        for kind in out.get('data', ())
    ]
    assert 'image/png' in shown
    printed = ''.join(
        out.get('text', '') for cell in notebook.cells for out in cell.get('outputs', ())
    )
    assert name != 'first_model' or 'Epoch(train) [1]' in printed  # it does not look hung
