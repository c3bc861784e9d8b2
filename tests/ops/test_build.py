"""How the operators for CPUs are compiled and found, and what is said where they are not."""

import logging
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmlape.ops import build, library


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


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(
        library, 'print_log', lambda text, logger, level: lines.append((level, text))
    )
    return lines


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
    assert {path.suffix for path in cache.iterdir()} == {'.so', '.lock'}


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
    ],
)
def test_without_it_one_line_says_why(how, why, cache, compiler, monkeypatch, said):
    if how == 'broken':
        compiler('echo "warning: a" >&2; echo "x.cpp: error: no such thing" >&2; exit 1')
    elif how == 'missing':
        monkeypatch.setenv('CXX', 'no-such-compiler')
    elif how == 'unwritable':
        cache.parent.parent.write_text('a file')
    else:
        compiler(WRITES)
    assert [library.is_there() for _ in range(3)] == [False] * 3
    ((level, line),) = [entry for entry in said if entry[0] > logging.INFO]
    assert level == logging.WARNING and line.startswith(
        'attention, deformable or not, and DTN run on CPUs in their'
    )
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(line)
    assert not list(cache.glob('tmp*')) if cache.is_dir() else True


def test_the_switch(cache, compiler, monkeypatch, said):
    calls = compiler(WRITES)
    monkeypatch.setenv('MMLAPE_OPS', '0')
    assert not library.is_there() and not calls() and not said
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
