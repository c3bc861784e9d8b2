"""The operators in C++ agree with PyTorch's on strided, empty, expanded, NaN and extreme inputs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmlape.cpu import build

SANITIZED = 'c++ -g -fsanitize=address,undefined -fno-sanitize-recover=all -Wl,-Bsymbolic'
# Allocations of the operators, which fail once `left` of them were made.
ALLOCATIONS = """
#include <atomic>
#include <cstdlib>
#include <new>
static std::atomic<int> left{-1};
extern "C" void fail_after(int number) { left = number; }
void* operator new(std::size_t size) {
  if (left == 0) throw std::bad_alloc();
  if (left > 0) --left;
  return std::malloc(size);
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
"""


def fuzz(*arguments: str, **environment: str) -> None:
    """In a process of its own, which may crash."""
    environment = {**os.environ, 'MMLAPE_OPS': '1', 'OMP_WAIT_POLICY': 'passive', **environment}
    script = Path(__file__).parents[1] / 'helpers' / 'fuzz_operators.py'
    done = subprocess.run(
        [sys.executable, script, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.stdout.endswith('done\n'), (done.returncode, done.stderr[-5000:])


@pytest.mark.slow
def test_random_inputs():
    fuzz('100')


@pytest.mark.slow
def test_random_inputs_under_sanitizers(tmp_path, monkeypatch):
    """Neither operator reads or writes outside of its arrays, nor lets an exception out of a thread."""
    libraries = [
        subprocess.check_output(['c++', f'-print-file-name={name}'], text=True).strip()
        for name in ('libasan.so', 'libubsan.so', 'libstdc++.so')
    ]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip('this compiler has no sanitizers')
    sources = shutil.copytree(build.SOURCES, tmp_path / 'sources')
    (sources / 'allocations.cpp').write_text(ALLOCATIONS)
    monkeypatch.setattr(build, 'SOURCES', sources)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setenv('CXX', SANITIZED)
    fuzz(
        '150',
        str(build.build()),
        LD_PRELOAD=' '.join(libraries),
        ASAN_OPTIONS='detect_leaks=0',
        UBSAN_OPTIONS='print_stacktrace=1',
    )
