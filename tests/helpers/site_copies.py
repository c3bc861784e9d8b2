"""Environments that lack a package, or have another version of it, for tests that run Python in them."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# Which entries of site-packages belong to an import name, whichever distribution it comes from.
ENTRIES = {
    'mmengine': ('mmengine', 'onedl_mmengine-'),
    'mmcv': ('mmcv', 'onedl_mmcv-'),
    'mmdet': ('mmdet', 'onedl_mmdetection-'),
    'mmseg': ('mmseg', 'onedl_mmsegmentation-'),
    'mmpretrain': ('mmpretrain', 'onedl_mmpretrain'),
    'torch': ('torch', 'functorch'),
    'torchvision': ('torchvision',),
    'timm': ('timm',),
    'mmlape': ('mmlape', '__editable__'),
}


def link_site_packages(target: Path, without: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Folders of links to all that is installed, but for mmlape and the packages named in `without`: `target`, with the
    packages above, and one with all others, which tests share (hundreds of links take seconds to write and remove)."""
    others = target.parents[1] / 'other_packages'
    for folder in (target, others):
        folder.mkdir(exist_ok=True)
    left_out = tuple(prefix for name in (*without, 'mmlape') for prefix in ENTRIES[name])
    named = tuple(prefix for prefixes in ENTRIES.values() for prefix in prefixes)
    for entry in Path(sysconfig.get_path('purelib')).iterdir():
        place = (target if entry.name.startswith(named) else others) / entry.name
        if not entry.name.startswith(left_out) and not place.exists():
            link(entry, place)
    return target, others


def link(entry: Path, target: Path) -> None:
    if entry.name == 'cv2':  # finds its library by the real place of its __init__.py
        target.mkdir()
        shutil.copy(entry / '__init__.py', target)
        for part in entry.iterdir():
            if part.name != '__init__.py':
                (target / part.name).symlink_to(part)
    else:
        target.symlink_to(entry)


def write_package(site: Path, name: str, version: str) -> None:
    """An empty package with a version."""
    (site / name).mkdir()
    (site / name / '__init__.py').write_text('')
    (site / name / 'version.py').write_text(f"__version__ = '{version}'\n")


def run_python(code: str, *paths: Path, cwd: Path) -> subprocess.CompletedProcess:
    """Run `code` with `paths` as all there is to import from, beside the standard library."""
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    setup = f'import sys; sys.path[:0] = {[str(path) for path in paths]}\n'
    return subprocess.run(
        [sys.executable, '-S', '-c', setup + code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**environment, 'OMP_NUM_THREADS': '1'},
    )
