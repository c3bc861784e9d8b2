"""mmcv without a compiler: its Python files, with torchvision's NMS and RoIAlign in the place of its own operators.

They travel in one wheel, so pip knows the stand-in as a part of mmcv and removes it with mmcv. The wheel is not kept:
it takes seconds to make, and nothing can take it for a compiled one.
"""

import os
import shutil
import subprocess
from pathlib import Path

from common import ROOT, SetupError, digest
from mmcv_wheel import fetch_source

SOURCE = ROOT / 'tools' / 'setup_env' / 'mmcv_ext.py'
_MARK = 'torchvision-'


def is_asked_for() -> bool:
    """By ``OPS=torchvision``.

    Raises:
        SetupError: ``OPS`` is something else.
    """
    asked = os.environ.get('OPS')
    if asked and asked != 'torchvision':
        raise SetupError(f'OPS={asked} is unknown; say OPS=torchvision, or leave it out')
    return bool(asked)


def stamp(*versions: object) -> str:
    """What the step leaves that installed the stand-in."""
    return _MARK + digest(versions, SOURCE.read_text(encoding='utf-8'))


def is_stamp(text: str | None) -> bool:
    return bool(text) and text.startswith(_MARK)


def make_wheel(
    python: Path, environment: dict, distribution: str, version: str, work: Path
) -> Path:
    """mmcv's wheel with the stand-in, made in the folder `work`.

    Args:
        python: interpreter of an environment that has setuptools and wheel.
        environment: variables, with that environment first in ``PATH``.
        distribution: name of mmcv on the package index.
        version: its exact version.
        work: emptied first.

    Raises:
        SetupError: The source cannot be fetched, or no wheel comes out.
    """
    shutil.rmtree(work, ignore_errors=True)
    source = fetch_source(python, environment, distribution, version, work, joined=False)
    shutil.copyfile(SOURCE, source / 'mmcv' / '_ext.py')
    # Where torch is not, mmcv's setup.py leaves its operators out. Its own switch, MMCV_WITH_OPS=0, changes the
    # distribution's name in one version and nothing in another.
    hidden = work / 'hidden'
    hidden.mkdir()
    (hidden / 'torch.py').write_text('raise ModuleNotFoundError("hidden")\n', encoding='utf-8')
    command = [str(python), '-m', 'pip', 'wheel', '-q', '--no-build-isolation', '--no-deps']
    result = subprocess.run(
        [*command, '--use-pep517', '-w', str(work), str(source)],
        env={**environment, 'PYTHONPATH': str(hidden), 'MMCV_WITH_OPS': '1'},
        capture_output=True,
        text=True,
    )
    wheel = next(work.glob('*.whl'), None)
    if result.returncode or wheel is None:
        lines = (result.stderr + result.stdout).strip().splitlines() or ['no message']
        raise SetupError(f'{distribution} {version} without operators: {lines[-1].strip()}')
    return wheel
