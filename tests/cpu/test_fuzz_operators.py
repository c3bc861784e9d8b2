"""The operators in C++ agree with PyTorch's on strided, empty, expanded and infinite inputs."""

import os
import subprocess
import sys
from pathlib import Path


def test_random_inputs():
    """In a process of its own, which may crash."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name('fuzz_operators.py'), '200'],
        env={**os.environ, 'MMLAPE_OPS': '1'},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith('done 200\n'), (done.returncode, done.stderr[-3000:])
