"""What is imported from ``mmlape.analysis``: all of it, on first use, and Matplotlib only to draw."""

import subprocess
import sys

import pytest
from config_utils import REPO

import mmlape.analysis

LOADED = """
import runpy, sys
runpy.run_path(sys.argv[1])
import mmlape.analysis
loaded = [n for n in sys.modules if n == 'matplotlib' or n.endswith(('.panels', '.drawing'))]
assert not loaded, loaded
"""


def test_every_public_name_is_there():
    assert set(mmlape.analysis.__all__) < set(dir(mmlape.analysis))
    for name in mmlape.analysis.__all__:
        assert getattr(mmlape.analysis, name) is not None
    with pytest.raises(AttributeError, match=r"'mmlape\.analysis' has no attribute 'stage'"):
        _ = mmlape.analysis.stage


@pytest.mark.parametrize('name', ['find_stacks', 'find_layer_stacks', 'pick_stack', 'LayerStack'])
def test_a_name_that_is_gone_says_what_to_write(name):
    with pytest.raises(AttributeError, match=rf'{name} is gone: write mmlape\.\w+\.\w+'):
        getattr(mmlape.analysis, name)


@pytest.mark.slow
def test_converting_loads_no_matplotlib():
    script = REPO / 'tools' / 'model_converters' / 'convert.py'
    done = subprocess.run(
        [sys.executable, '-c', LOADED, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
