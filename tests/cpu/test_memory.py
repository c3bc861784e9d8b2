"""On a CPU, memory that is freed stays with the process, unless the environment says how memory is managed."""

import ctypes
import os
import subprocess
import sys

import mmengine.device
import pytest
from torch import nn

from mmlape.cpu import memory, optimize

# Page faults of a buffer that is freed and wanted again, as each step of a training frees and wants its own.
FAULTS = """
import resource, sys, types
sys.modules['mmengine'] = types.ModuleType('mmengine')  # the real one imports PyTorch, for seconds
sys.modules['mmengine.device'] = types.SimpleNamespace(get_device=lambda: 'cpu')
from mmlape.cpu.memory import keep_freed_memory
import numpy
kept = sys.argv[1] == 'keep' and keep_freed_memory()
before = None
for _ in range(4):
    numpy.ones(2**23)
    now = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    before = now if before is None else before  # the first one is new
print(kept, now - before)
"""


def run(word: str) -> list[str]:
    known = {
        k: v
        for k, v in os.environ.items()
        if 'MALLOC' not in k and k not in ('GLIBC_TUNABLES', 'LD_PRELOAD')
    }
    command = [sys.executable, '-c', FAULTS, word]
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=True)
    return done.stdout.split()


def has_glibc() -> bool:
    return bool(os.confstr('CS_GNU_LIBC_VERSION')) if sys.platform == 'linux' else False


def test_a_buffer_comes_back_without_page_faults():
    kept, faults = run('keep')
    assert kept == str(has_glibc())
    if has_glibc():
        _, as_before = run('leave')
        assert int(faults) * 10 < int(as_before)


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: object())
    assert not memory.keep_freed_memory() and memory.return_freed_memory() is None


@pytest.fixture
def libc(monkeypatch):
    """One whose largest M_MMAP_THRESHOLD is ``largest``; what it accepts is in ``asked``."""

    class Library:
        largest, asked = 2**62, []

        @classmethod
        def mallopt(cls, which, size):
            if which == memory.M_MMAP_THRESHOLD and size > cls.largest:
                return 0
            cls.asked.append((which, size))
            return 1

    Library.asked = []
    for name in ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: Library)
    monkeypatch.setattr(mmengine.device, 'get_device', lambda: 'cpu')
    return Library


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('MALLOC_TRIM_THRESHOLD_', '100000'),
        ('MALLOC_MMAP_THRESHOLD_', '100000'),
        ('GLIBC_TUNABLES', 'glibc.malloc.trim_threshold=100000'),
    ],
)
def test_what_the_environment_says_is_kept(libc, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not memory.keep_freed_memory() and not libc.asked


@pytest.mark.parametrize(
    ('largest', 'accepted'), [(2**62, [2**30, 2**31 - 1]), (2**25, [2**25, 2**31 - 1]), (0, [])]
)
def test_an_old_glibc_refuses_large_blocks(libc, largest, accepted):
    """Up to 2.34 (32 MiB). The other threshold alone would make each block above 128 KiB the kernel's."""
    libc.largest = largest
    assert memory.keep_freed_memory() is bool(accepted)
    assert [size for _, size in libc.asked] == accepted
    assert [which for which, _ in libc.asked] == [-3, -1][: len(accepted)]


@pytest.mark.parametrize(('device', 'number'), [('cpu', 2), ('cuda', 0)])
def test_optimize_does_it_on_a_cpu_alone(libc, monkeypatch, device, number):
    monkeypatch.setenv('MMLAPE_OPS', '1')
    monkeypatch.setattr(mmengine.device, 'get_device', lambda: device)
    optimize(nn.Identity(), keep_memory=False)
    assert not libc.asked
    optimize(nn.Identity())
    assert len(libc.asked) == number
