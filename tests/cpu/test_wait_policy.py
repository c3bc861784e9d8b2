"""Threads of trainings give their core away soon, unless the environment says how they wait."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = 'segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512'
TOOLS = Path(__file__).resolve().parents[2] / 'tools'
# Says what the environment is at the moment in which PyTorch is asked for, and ends there.
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
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Python with no word on waiting in its environment but the one given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(('OMP_', 'GOMP_'))}
    return subprocess.run(
        [sys.executable, '-c', code, *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


@pytest.mark.parametrize(
    ('tool', 'arguments'),
    [
        ('train', [CONFIG]),
        ('test', [CONFIG, __file__]),
        ('timm_run', [__file__]),
    ],
)
def test_commands_say_it_before_pytorch_is_imported(tool, arguments):
    assert run(AT_TORCH, str(TOOLS / f'{tool}.py'), *arguments).stdout == '1000\n'


def test_the_import_says_nothing():
    code = "import os, mmlape.cpu; from mmlape.cpu import optimize; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert run(code).stdout == 'None\n'


@pytest.mark.parametrize(
    ('environment', 'expected'),
    [({'OMP_WAIT_POLICY': 'ACTIVE'}, 'None'), ({'GOMP_SPINCOUNT': '7'}, '7')],
)
def test_what_the_environment_says_is_kept(environment, expected):
    done = run(AT_TORCH, str(TOOLS / 'train.py'), CONFIG, **environment)
    assert done.stdout == f'{expected}\n'


def test_openmp_hears_it():
    """GNU's, which is PyTorch's on Linux; other ones have no such number, before or after."""

    def heard(code):
        said = run(code, OMP_DISPLAY_ENV='VERBOSE').stderr
        return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", said)

    before, after = (
        heard('import torch'),
        heard(
            'from mmlape.cpu.wait_policy import set_wait_policy; set_wait_policy(); import torch'
        ),
    )
    assert bool(before) == (sys.platform == 'linux') and '1000' not in before
    assert after == ['1000'] * len(before)
