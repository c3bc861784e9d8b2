"""What the parts of the set-up share. Standard library only."""

import hashlib
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:
    sys.exit('error: make env needs Linux or macOS; on Windows call it in WSL2 (docs/install.md)')

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmlape'


class SetupError(Exception):
    """What the user has to change, in one line."""


def say(text: str) -> None:
    print(f'[env] {text}', flush=True)


def canonical(name: str) -> str:
    return re.sub(r'[-_.]+', '-', name).lower()


def read_requirements(path: Path) -> list[str]:
    """The lines of a requirements or constraints file without comments; ``-c other`` is followed."""
    lines = []
    for line in path.read_text(encoding='utf-8').splitlines():
        line = line.split('#')[0].strip()
        if line.startswith('-c '):
            lines += read_requirements(path.parent / line[3:].strip())
        elif line:
            lines.append(line)
    return lines


def name_of(requirement: str) -> str:
    return canonical(re.match(r'[\w.-]+', requirement).group(0))


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``'2.9.1+cu128'`` gives ``(2, 9, 1)``."""
    return tuple(int(part) for part in re.findall(r'\d+', re.match(r'[\d.]*', version).group(0)))


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def write_whole(path: Path, text: str) -> None:
    """Write through a temporary file, so that an interruption leaves the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'{path.name}.{os.getpid()}')
    part.write_text(text, encoding='utf-8')
    part.replace(path)


@contextmanager
def locked(path: Path, waiting_for: str):
    """One set-up at a time; a second one waits and then finds the work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f'waiting for another process that is {waiting_for}')
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ask(python: Path | str, code: str) -> dict:
    """What `python` prints as JSON for `code`."""
    result = subprocess.run([str(python), '-c', code], capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ['no output'])[-1]
        raise SetupError(f'{python} does not run: {reason}')
    return json.loads(result.stdout)


ABOUT_PYTHON = (
    'import json, sys, sysconfig; print(json.dumps(dict(version=list(sys.version_info[:3]), '
    'tag=sys.implementation.cache_tag, platform=sysconfig.get_platform(), prefix=sys.prefix, '
    "include=sysconfig.get_path('include'))))"
)
INSTALLED = (
    'import json, importlib.metadata as m; '
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)
