"""Compiles the operators for CPUs, once per machine and state of their source, into the user's cache.

The cache is a folder of the user's own (mode 0700), written to atomically. A binary that is incomplete, changed (its
digest is beside it) or another user's is compiled again, never loaded.

Standard library only, and nothing of mmlape: ``make env`` runs this file before there is anything else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / 'csrc'
FLAGS = ('-std=c++17', '-O3', '-fPIC', '-fno-math-errno')
# Some compilers have no threads of OpenMP: then only its `simd`.
THREADS = ('-fopenmp', '-fopenmp-simd')
SWITCH = 'MMLAPE_OPS'


class BuildError(Exception):
    """Why there are no compiled operators, in one line."""


def is_wanted() -> bool:
    """False if the environment variable ``MMLAPE_OPS`` is ``'0'``.

    Raises:
        ValueError: If it is neither ``'0'`` nor ``'1'`` (the default).
    """
    switch = os.environ.get(SWITCH, '1')
    if switch not in ('0', '1'):
        raise ValueError(f"the environment variable {SWITCH} must be '0' or '1', got {switch!r}")
    return switch == '1'


def sources() -> list[Path]:
    """Return the source files; each one is a compilation unit."""
    return sorted(SOURCES.glob('*.cpp'))


def binary() -> Path:
    """Where the operators of these sources are on this machine, or would be once they are compiled.

    It depends on neither Python nor PyTorch; changed sources have another name, so no old binary is ever loaded.
    """
    files = (path for suffix in ('h', 'cpp') for path in sorted(SOURCES.glob(f'*.{suffix}')))
    content = b''.join(file.read_bytes() for file in files)
    content += ' '.join((*FLAGS, *THREADS)).encode()
    machine = '-'.join([platform.system(), platform.machine(), ''.join(platform.libc_ver())])
    name = f'operators-{machine.lower()}-{hashlib.sha256(content).hexdigest()[:16]}.so'
    return cache_folder() / re.sub(r'[^\w.-]+', '_', name)


def cache_folder() -> Path:
    """Where operators are cached: ``$XDG_CACHE_HOME/mmlape/operators``, by default in ``~/.cache``.

    Raises:
        BuildError: If the user has no home folder.
    """
    try:
        cache = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    except RuntimeError:
        raise BuildError('no home folder to cache them in: set XDG_CACHE_HOME') from None
    return Path(cache, 'mmlape', 'operators')


def is_intact(target: Path) -> bool:
    """Whether a binary is there, is this user's, and is what its digest says."""
    try:
        owned = all(
            path.lstat().st_uid == os.geteuid() and not path.is_symlink()
            for path in (target.parent, target, target.with_suffix('.sha256'))
        )
        return owned and target.with_suffix('.sha256').read_text() == _digest(target)
    except (OSError, ValueError):
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def build() -> Path:
    """Compile, unless that was done before. Processes that ask at the same time wait for one of them.

    Returns:
        The binary.

    Raises:
        BuildError: There is no compiler, it fails, or the cache cannot be written to.
    """
    if os.name != 'posix':
        raise BuildError(f'operators are compiled on Linux and macOS, not on {platform.system()}')
    import fcntl

    target = binary()
    if is_intact(target):
        return target
    compiler = os.environ.get('CXX', 'c++').split()
    if not compiler or not shutil.which(compiler[0]):
        raise BuildError(f'no C++ compiler ({" ".join(compiler)}); CXX= names another one')
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if target.parent.stat().st_uid != os.geteuid():
            raise BuildError(f'{target.parent} is another user\'s: set XDG_CACHE_HOME')
        target.parent.chmod(0o700)  # an older version of mmlape let others read it
        with target.with_suffix('.lock').open('w') as file:
            with suppress(OSError):  # without locks two may compile; each binary is complete
                fcntl.flock(file, fcntl.LOCK_EX)
            if not is_intact(target):
                _compile(compiler, target)
    except OSError as error:
        raise BuildError(f'{target.parent}: {error.strerror or error}') from None
    return target


def _compile(compiler: list[str], target: Path) -> None:
    # On one file system: renaming is atomic.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder, 'library.so')
        made = {path: str(Path(folder, f'{path.stem}.o')) for path in sources()}
        for threads in THREADS:
            options = [*compiler, *FLAGS, threads]
            commands = [[*options, '-c', str(path), '-o', out] for path, out in made.items()]
            # Without OpenMP's library: PyTorch has one in this process, and a second one would have its own threads.
            commands.append([*compiler, '-shared', *made.values(), '-o', str(part)])
            errors = [_errors(command) for command in commands]
            if not any(errors):
                digest = Path(folder, 'digest')
                digest.write_text(_digest(part))
                part.replace(target)
                digest.replace(target.with_suffix('.sha256'))
                return
    raise BuildError(f'{" ".join(compiler)} fails: {next(filter(None, errors))}')


def _errors(command: list[str]) -> str:
    """The first line in which a command says why it failed; '' if it did not."""
    done = subprocess.run(command, capture_output=True, text=True, errors='replace')
    lines = (line.strip() for line in done.stderr.splitlines() if 'error' in line)
    return next(lines, f'exit code {done.returncode}') if done.returncode else ''


if __name__ == '__main__':
    try:
        sys.stdout.write(f'{build()}\n')
    except BuildError as error:
        sys.exit(f'error: {error}')
