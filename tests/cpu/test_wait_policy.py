"""Commands load OpenMP with a short spin, unless the environment says how threads wait; no child inherits it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = 'segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512'
TOOLS = Path(__file__).resolve().parents[2] / 'tools'
# Prints the variable at the moment in which PyTorch is imported, and ends there.
AT_TORCH = """
import os, runpy, sys
class Door:
    def find_spec(self, name, path=None, target=None):
        if name.startswith('torch.'):  # PyTorch itself is being imported, not looked for
            print(os.environ.get('GOMP_SPINCOUNT'), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Door())
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
"""
RUN = f"{AT_TORCH}runpy.run_path(sys.argv[0], run_name='__main__')"
A_MODEL_OF_THE_DEMO = f'{AT_TORCH}from mmlape.research.demo.run import run_job; run_job(None, None)'
SET = 'from mmlape.cpu.wait_policy import set_wait_policy; set_wait_policy()'


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Python with only these variables on waiting in its environment."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(('OMP_', 'GOMP_'))}
    return subprocess.run(
        [sys.executable, '-c', code, *arguments],
        env={**others, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


@pytest.mark.parametrize(
    ('code', 'tool', 'arguments', 'environment', 'expected'),
    [
        (RUN, 'train', [CONFIG], {}, '1000'),
        (RUN, 'test', [CONFIG, 'https://host/a.pth'], {}, '1000'),
        (RUN, 'timm_run', [__file__], {}, '1000'),
        (A_MODEL_OF_THE_DEMO, 'demo', [], {}, '1000'),
        (RUN, 'train', [CONFIG], {'OMP_WAIT_POLICY': 'ACTIVE'}, 'None'),
        (RUN, 'train', [CONFIG], {'GOMP_SPINCOUNT': '7'}, '7'),
    ],
)
def test_when_pytorch_is_imported(code, tool, arguments, environment, expected):
    done = run(code, str(TOOLS / f'{tool}.py'), *arguments, **environment)
    assert done.stdout == f'{expected}\n'


@pytest.mark.slow
def test_openmp_reads_it_and_no_child_inherits_it():
    """GNU's, which is PyTorch's on Linux; other ones have no such number, before or after."""

    def read(code):
        done = run(f'{code}; import os; os.system("env")', OMP_DISPLAY_ENV='VERBOSE')
        assert 'GOMP_SPINCOUNT' not in done.stdout and 'OMP_DISPLAY_ENV' in done.stdout
        return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)

    before, after = read('import torch'), read(f'{SET}; import torch')
    assert bool(before) == (sys.platform == 'linux') and '1000' not in before
    assert after == ['1000'] * len(before)
