"""What is looked at before anything is touched: each function raises SetupError with what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from common import (
    ABOUT_PYTHON,
    CACHE,
    ROOT,
    SetupError,
    ask,
    name_of,
    numbers,
    read_requirements,
    say,
)

FREE_GB = 8


def check_venv(venv: Path) -> None:
    """`venv` is new, empty, or an environment."""
    if not venv.exists() or (venv.is_dir() and not any(venv.iterdir())):
        return
    if not any((venv / mark).exists() for mark in ('pyvenv.cfg', 'conda-meta', '.mmlape')):
        raise SetupError(
            f'VENV={venv} is there but is not an environment; give a new folder or an environment'
        )
    if not (venv / 'bin' / 'python').is_file() and not (venv / '.mmlape').is_dir():
        raise SetupError(f'VENV={venv} has no bin/python; remove it or give another folder')


def check_python(venv: Path, asked_for: str | None) -> dict:
    """Facts about the interpreter that `venv` has or will have, which the user asked for or not."""
    python = venv / 'bin' / 'python'
    about = ask(python if python.is_file() else sys.executable, ABOUT_PYTHON)
    version = '.'.join(map(str, about['version']))
    if about['version'] < [3, 10]:
        raise SetupError(f'mmlape needs Python >= 3.10, and {venv} has {version}')
    if asked_for and ask(asked_for, ABOUT_PYTHON)['version'][:2] != about['version'][:2]:
        raise SetupError(
            f'{venv} has Python {version}, which is not PYTHON={asked_for}: '
            'remove that folder or give another one (VENV=path)'
        )
    if about['version'] >= [3, 13]:
        say(f'Python {version} is newer than the tested ones (3.10 to 3.12); trying')
    return about


def check_torch(venv: Path, installed: dict) -> None:
    """The torch in somebody else's environment, which is not replaced, is new enough."""
    lines = read_requirements(ROOT / 'requirements.txt')
    (minimum,) = (line.split('>=')[1] for line in lines if name_of(line) == 'torch')
    version = installed.get('torch')
    if version and numbers(version) < numbers(minimum):
        raise SetupError(
            f"mmlape needs torch >= {minimum}, and {venv} has {version}: `pip install 'torch>={minimum}' torchvision` "
            'there, and uninstall its mmcv, which is compiled again; or give another environment (VENV=path)'
        )


def check_space(venv: Path) -> None:
    """Room for the packages on the disks of `venv` and of the cache."""
    folders = {}
    for folder in (venv, CACHE):
        while not folder.exists():
            folder = folder.parent
        folders[folder.stat().st_dev] = folder
    for folder in folders.values():
        free = shutil.disk_usage(folder).free / 1e9
        if free < FREE_GB:
            raise SetupError(
                f'{folder} has {free:.1f} GB of free disk; the set-up needs {FREE_GB} GB '
                '(another disk: VENV=path, XDG_CACHE_HOME=path)'
            )


def check_compiler(about: dict) -> None:
    """A C++17 compiler, and the headers of the interpreter that `about` describes."""
    compiler = os.environ.get('CXX', 'c++').split()
    if not shutil.which(compiler[0]):
        raise SetupError(
            f"no C++ compiler ({compiler[0]}), which mmcv's operators need: install one (Debian, Ubuntu: "
            'build-essential; Fedora: gcc-c++; macOS: xcode-select --install; without rights: conda install gxx) '
            'or set CXX='
        )
    command = [*compiler, '-std=c++17', '-fsyntax-only', '-x', 'c++', '-']
    probe = subprocess.run(command, input='#include <vector>\n', capture_output=True, text=True)
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or ['no message'])[0]
        raise SetupError(f'the C++ compiler {compiler[0]} does not compile C++17: {reason}')
    if not Path(about['include'], 'Python.h').is_file():
        version = '.'.join(map(str, about['version'][:2]))
        raise SetupError(
            f'Python.h is missing in {about["include"]}: install the headers '
            f'(Debian, Ubuntu: python{version}-dev; Fedora: python3-devel)'
        )
