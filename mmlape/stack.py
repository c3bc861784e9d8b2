"""PyTorch and the OpenMMLab packages underneath: which ones do, and what to install if they do not.

Every package of OpenMMLab exists twice: the maintained ``onedl-*`` distributions and the original ones, with the same
import names. Which of the two is installed is the user's decision, so nothing here replaces anything.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import re
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """What is known of one package.

    Args:
        module: Import name.
        required: Whether nothing works without it.
        minimum: Lowest version that works.
        original: Distribution name and tested version of the original package.
        onedl: Distribution name and tested version of the maintained package.
        onedl_since: First version number that only the maintained one has; from there on its tested version is the
            lowest that works.
        without_isolation: Whether pip has to build it without isolation, next to the torch that is installed.
    """

    module: str
    required: bool
    minimum: str
    original: tuple[str, str]
    onedl: tuple[str, str]
    onedl_since: str | None = None
    without_isolation: bool = False

    def advice(self, families: set[str]) -> str:
        """The command that installs it, for the family that is there already, or for both."""
        options = '--no-build-isolation ' if self.without_isolation else ''
        commands = []
        for family, (name, version) in (('onedl', self.onedl), ('original', self.original)):
            if family in families or not families:
                commands.append(f'`pip install {options}{name}=={version}`')
        return ' or '.join(commands)


PACKAGES = (
    Package('mmengine', True, '0.10.7', ('mmengine', '0.10.7'), ('onedl-mmengine', '0.10.12'), '0.10.8'),
    Package('mmcv', True, '2.1.0', ('mmcv', '2.1.0'), ('onedl-mmcv', '2.3.6'), '2.3.0', True),
    Package('mmdet', False, '3.3.0', ('mmdet', '3.3.0'), ('onedl-mmdetection', '3.5.1'), None, True),
    Package('mmseg', False, '1.2.2', ('mmsegmentation', '1.2.2'), ('onedl-mmsegmentation', '1.4.2'), None, True),
    Package('mmpretrain', False, '1.2.0', ('mmpretrain', '1.2.0'), ('onedl-mmpretrain', '1.3.6')),
)  # fmt: skip
TORCH = '2.5'  # the first with public hooks for state dicts
HELP = 'see docs/install.md, or use `make env` in a clone'


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``'2.3.6rc1'`` gives ``(2, 3, 6)``."""
    match = re.match(r'\d+(\.\d+)*', version)
    return tuple(int(part) for part in match.group(0).split('.')) if match else ()


def package_folder(module: str) -> Path | None:
    """Where `module` is, found without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def found_version(package: Package) -> str | None:
    """The version of the package that an import would give, or None if it is not installed.

    The package is not imported for that: it would take seconds, and the original toolboxes refuse some versions of
    mmcv on import. The original packages write the version in ``version.py``, the maintained ones in their metadata.
    """
    folder = package_folder(package.module)
    if folder is None:
        return None
    versions = metadata_versions(package)
    return written_version(folder) or versions.get('onedl') or versions.get('original') or 'unknown'


def written_version(folder: Path) -> str | None:
    """The version in ``version.py`` of a package's folder, if it is there."""
    version_file = folder / 'version.py'
    text = version_file.read_text(encoding='utf-8') if version_file.is_file() else ''
    match = re.search(r'^__version__\s*=\s*[\'"]([^\'"]+)', text, re.MULTILINE)
    return match.group(1) if match else None


def metadata_versions(package: Package) -> dict[str, str]:
    """The installed distributions of a package: 'onedl', 'original', both or none, with their versions."""
    versions = {}
    for family, (name, _) in (('onedl', package.onedl), ('original', package.original)):
        try:
            versions[family] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def check_version(package: Package, version: str, families: set[str]) -> None:
    """Refuse a version that is too old, and warn about one that is newer than all tested ones."""
    found, tested = numbers(version), numbers(package.onedl[1])
    minimum = package.minimum
    if package.onedl_since and numbers(package.onedl_since) <= found:
        # mmcv 2.2.0 and mmengine 0.10.7 are original; above them only the fork has releases.
        minimum = package.onedl[1]
    if found and found < numbers(minimum):
        raise ImportError(
            f'mmlape needs {package.module} >= {minimum}, but {version} is installed: '
            f'{package.advice(families)}; {HELP}'
        )
    if found[:2] > tested[:2]:
        warnings.warn(
            f'{package.module} {version} is newer than {package.onedl[1]}, the newest that mmlape '
            'was tested with',
            stacklevel=2,
        )


def operators_file() -> Path | None:
    """mmcv's operators: a library, a ``.py`` file where torchvision's stand in for them, or None."""
    folder = package_folder('mmcv')
    spec = importlib.machinery.PathFinder.find_spec('_ext', [str(folder)])
    return Path(spec.origin) if spec and spec.origin else None


def stands_in() -> bool:
    """Whether mmcv has torchvision's operators in place of its own."""
    file = operators_file()
    return file is not None and file.suffix == '.py'


def check_operators(package: Package, families: set[str]) -> None:
    """Refuse an mmcv without operators, which pip installs silently when it builds in isolation."""
    if operators_file() is None:
        raise ImportError(
            'mmcv is installed without its compiled operators (mmcv._ext): `pip uninstall` it, then '
            f'MMCV_WITH_OPS=1 {package.advice(families)} with torch, setuptools, wheel, ninja and '
            f'psutil installed (10 minutes of compiling); {HELP}'
        )


def torch_version() -> str | None:
    """torch's version, or None if it is not installed; it is not imported, which takes seconds."""
    folder = package_folder('torch')
    version = written_version(folder) if folder else None
    if folder and version is None:
        try:
            version = importlib.metadata.version('torch')
        except importlib.metadata.PackageNotFoundError:
            version = 'unknown'
    return version


def check_torch() -> None:
    """Refuse a torch that is missing or too old."""
    version = torch_version()
    if version is None or () < numbers(version) < numbers(TORCH):
        found = f', but {version} is installed' if version else ', which is not installed'
        raise ImportError(
            f"mmlape needs torch >= {TORCH}{found}: `pip install 'torch>={TORCH}' torchvision`, then mmcv "
            f'again, whose operators fit only the torch that they were compiled with; {HELP}'
        )


def check_stack() -> None:
    """Check everything mmlape stands on, without importing it.

    torch, mmengine and mmcv (with compiled operators) are required. mmdet, mmseg and mmpretrain are each needed only
    by their own configs: absent is fine.

    Raises:
        ImportError: One is missing or too old; the message names it, the version found, and what to install.
    """
    families = {family for package in PACKAGES for family in metadata_versions(package)}
    families = families if len(families) == 1 else set()
    toolboxes = []
    for package in PACKAGES:
        version = found_version(package)
        if version is None and package.required:
            raise ImportError(
                f'mmlape needs {package.module} >= {package.minimum}, which is not installed: '
                f'{package.advice(families)}; {HELP}'
            )
        if version is None:
            continue
        if len(metadata_versions(package)) == 2:
            warnings.warn(
                f'{package.original[0]} and {package.onedl[0]} are both installed and overwrite each '
                f'other in {package.module}/: uninstall both, then install one',
                stacklevel=2,
            )
        check_version(package, version, families)
        if package.module == 'mmcv':
            check_operators(package, families)
        if not package.required:
            toolboxes.append(package.module)
    check_torch()
    if not toolboxes:
        advice = ' or '.join(
            package.advice(families) for package in PACKAGES if not package.required
        )
        warnings.warn(
            f'none of mmdet, mmseg and mmpretrain is installed: backbones can be built, but to train them one is '
            f'needed: {advice}; {HELP}',
            stacklevel=2,
        )


def weights_only_fault(version: str) -> str | None:
    """How files get around ``torch.load(..., weights_only=True)`` in a version of torch; None if nothing is known."""
    faults = (
        ((2, 6), 'CVE-2025-32434 (code runs on loading), mended in torch 2.6'),
        ((2, 10), 'CVE-2026-24747 (memory is corrupted on loading), mended in torch 2.10'),
    )
    return ' and '.join(text for mended, text in faults if numbers(version) < mended) or None
