"""How the operators for CPUs are compiled and found, and what is said where they are not."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mmlape.cpu import build, library


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.delenv('MMLAPE_OPS', raising=False)
    library.library.cache_clear()
    yield tmp_path / 'cache' / 'mmlape' / 'operators'
    library.library.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Sets a compiler that notes its calls: ``compiler('exit 1')``."""
    program, calls = tmp_path / 'compiler', tmp_path / 'calls'

    def use(text):
        program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{text}\n')
        program.chmod(0o755)
        monkeypatch.setenv('CXX', str(program))
        return lambda: calls.read_text().splitlines() if calls.exists() else []

    return use


# Writes what it was asked for: the argument after -o.
WRITES = 'while [ "$1" != -o ]; do shift; done; sleep 0.2; echo binary > "$2"'


def test_a_changed_source_is_another_binary(cache, tmp_path, monkeypatch):
    first = build.binary()
    assert first.parent == cache
    original = build.SOURCES
    names = {path.name for path in original.iterdir()}
    assert {'deformable_sampling.cpp', 'dtn.cpp', 'processors.h'} <= names
    for name in ('dtn.cpp', 'axis_products.h'):
        changed = tmp_path / f'changed-{name}'
        shutil.copytree(original, changed)
        monkeypatch.setattr(build, 'SOURCES', changed)
        assert build.binary() == first
        (changed / name).write_bytes((changed / name).read_bytes() + b'\n')
        assert build.binary() != first
    monkeypatch.undo()
    monkeypatch.setattr(build, 'FLAGS', (*build.FLAGS, '-g'))
    assert build.binary().name != first.name


def test_processes_that_start_together_compile_once(cache, compiler):
    calls = compiler(WRITES)
    command = [sys.executable, build.__file__]
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda _: subprocess.check_output(command, text=True), range(4)))
    assert {Path(line.strip()) for line in made} == {build.binary()}
    assert len(calls()) == len(build.sources()) + 1  # compiled and linked
    assert {path.suffix for path in cache.iterdir()} == {'.so', '.lock', '.sha256'}
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_compiler_without_threads_is_asked_again(cache, compiler):
    calls = compiler(f'case "$*" in *"-fopenmp -c"*) exit 1;; esac; {WRITES}')
    assert build.build().read_text() == 'binary\n'
    tried = [' -fopenmp-simd ' in call for call in calls() if ' -c ' in call]
    assert tried == [False] * len(build.sources()) + [True] * len(build.sources())


@pytest.mark.parametrize(
    ('how', 'why'),
    [
        ('broken', 'fails: x.cpp: error: no such thing'),
        ('missing', r'no C\+\+ compiler \(no-such-compiler\)'),
        ('unwritable', 'operators: Not a directory'),
        ('of another machine', 'invalid ELF header|file too short|not a mach-o'),
        ('no home', 'no home folder to cache them in: set XDG_CACHE_HOME'),
        ('without the functions', 'undefined symbol: deformable_forward_float32|symbol not found'),
    ],
)
def test_without_it_the_reason_is_known(how, why, cache, compiler, monkeypatch, tmp_path):
    if how == 'broken':
        compiler('echo "warning: a" >&2; echo "x.cpp: error: no such thing" >&2; exit 1')
    elif how == 'missing':
        monkeypatch.setenv('CXX', 'no-such-compiler')
    elif how == 'unwritable':
        cache.parent.parent.write_text('a file')
    elif how == 'no home':
        monkeypatch.delenv('XDG_CACHE_HOME')
        monkeypatch.setattr(Path, 'home', lambda: (_ for _ in ()).throw(RuntimeError('no home')))
    elif how == 'without the functions':
        empty = tmp_path / 'sources'
        empty.mkdir()
        (empty / 'empty.cpp').write_text('extern "C" int nothing() { return 0; }')
        monkeypatch.setattr(build, 'SOURCES', empty)
    else:
        compiler(WRITES)
    assert [library.is_there() for _ in range(3)] == [False] * 3
    assert re.search(why, library.library()[1]) and '\n' not in library.library()[1]
    assert not list(cache.glob('tmp*')) if cache.is_dir() else True


def truncate(binary):
    binary.write_bytes(binary.read_bytes()[:3])


def no_digest(binary):
    binary.with_suffix('.sha256').unlink()


def another_digest(binary):
    binary.with_suffix('.sha256').write_text('0' * 64)


def a_link(binary):
    other = binary.with_name('other')
    binary.rename(other)
    binary.symlink_to(other)


@pytest.mark.parametrize('spoil', [truncate, no_digest, another_digest, a_link, Path.unlink])
def test_a_binary_that_is_not_whole_is_compiled_anew(cache, compiler, spoil):
    calls = compiler(WRITES)
    binary = build.build()
    once = len(calls())
    assert build.build() == binary and len(calls()) == once
    spoil(binary)
    assert build.build() == binary and len(calls()) == 2 * once
    assert binary.read_text() == 'binary\n' and build.is_intact(binary)


def test_what_belongs_to_another_user_is_not_loaded(cache, compiler, monkeypatch):
    compiler(WRITES)
    assert build.is_intact(build.build())
    somebody = os.geteuid() + 1
    monkeypatch.setattr(build.os, 'geteuid', lambda: somebody)
    assert not build.is_intact(build.binary())
    with pytest.raises(build.BuildError, match="operators is another user's: set XDG_CACHE_HOME"):
        build.build()


def test_a_folder_that_others_may_write_to_is_closed(cache, compiler):
    compiler(WRITES)
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    build.build()
    assert cache.stat().st_mode & 0o777 == 0o700


def test_without_memory_an_operator_raises(monkeypatch):
    """That C++ says so for each of its allocations is shown by test_fuzz_operators.py."""

    class Core:
        @staticmethod
        def dtn_forward_float32(*_):
            return 1

    monkeypatch.setattr(library, 'library', lambda: (Core, ''))
    with pytest.raises(MemoryError, match='not enough memory for the operator dtn_forward'):
        library.call('dtn_forward', torch.float32, [], [])


def test_the_switch(cache, compiler, monkeypatch):
    calls = compiler(WRITES)
    monkeypatch.setenv('MMLAPE_OPS', '0')
    assert not library.is_there() and not calls()
    library.library.cache_clear()
    monkeypatch.setenv('MMLAPE_OPS', 'off')
    with pytest.raises(ValueError, match="MMLAPE_OPS must be '0' or '1', got 'off'"):
        library.is_there()


@pytest.mark.parametrize('source', build.sources(), ids=lambda path: path.stem)
def test_it_is_compiled_without_warnings(source):
    command = [
        'c++',
        *build.FLAGS,
        build.THREADS[0],
        '-Wall',
        '-Wextra',
        '-Werror',
        '-fsyntax-only',
    ]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
