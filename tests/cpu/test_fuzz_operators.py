"""The operators in C++ read and write nothing that is not theirs, on 2,000 inputs of each, under two sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SANITIZERS = '-fsanitize=address,undefined -fno-sanitize-recover=undefined'


@pytest.mark.slow
def test_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    libraries = [
        subprocess.check_output(['c++', f'-print-file-name={name}'], text=True).strip()
        for name in ('libasan.so', 'libubsan.so')
    ]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name('fuzz_operators.py'), '2000'],
        env={
            **os.environ,
            'MMLAPE_OPS': '1',
            'CXX': f'c++ {SANITIZERS}',
            'XDG_CACHE_HOME': str(tmp_path),
            'LD_PRELOAD': ' '.join(libraries),
            'ASAN_OPTIONS': 'detect_leaks=0',
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith('done 2000\n'), (done.returncode, done.stderr[-3000:])
