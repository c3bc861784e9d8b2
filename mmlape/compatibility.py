"""Dependency versions: which PyTorch and OpenMMLab packages work, and what to install if they do not.

Every OpenMMLab package exists twice, as a maintained ``onedl-*`` distribution and as the original, with the same import
name. The user decides which one is installed. Packages are checked without importing them: imports take seconds, and
the original toolboxes refuse some versions of mmcv on import.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import platform
import re
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .version import __version__


@dataclass(frozen=True)
class Package:
    """A dependency; ``original`` and ``onedl`` are names and tested versions of its two distributions."""

    module: str
    required: bool
    minimum: str  # version of the original
    original: tuple[str, str]
    onedl: tuple[str, str]
    onedl_since: str | None = None  # only onedl has it; of these, the tested one is the minimum
    without_isolation: bool = False  # pip must build it beside the installed torch

    def advice(self, families: set[str]) -> str:
        """The command that installs it, for the family that is installed already; all of mmlape[onedl] if none is."""
        options = '--no-build-isolation ' if self.without_isolation else ''
        commands = (
            '`pip install {}{}=={}`'.format(options, *getattr(self, family))
            for family in ('onedl', 'original')
            if family in families
        )
        return ' or '.join(commands) or INSTALL


PACKAGES = (
    Package('mmengine', True, '0.10.7', ('mmengine', '0.10.7'), ('onedl-mmengine', '0.10.12'), '0.10.8'),
    Package('mmcv', True, '2.1.0', ('mmcv', '2.1.0'), ('onedl-mmcv', '2.3.6'), '2.3.0', True),
    Package('mmdet', False, '3.3.0', ('mmdet', '3.3.0'), ('onedl-mmdetection', '3.5.1'), None, True),
    Package('mmseg', False, '1.2.2', ('mmsegmentation', '1.2.2'), ('onedl-mmsegmentation', '1.4.2'), None, True),
    Package('mmpretrain', False, '1.2.0', ('mmpretrain', '1.2.0'), ('onedl-mmpretrain', '1.3.6')),
)  # fmt: skip
OTHERS = ('torchvision', 'timm', 'numpy', 'safetensors')  # any version that pip installs works
TORCH = '2.6'  # the first whose `weights_only` keeps code from running, and can name what is safe
TORCH_END = '2.16'  # the first that is untested
TORCH_INSTALL = f"pip install 'torch>={TORCH},<{TORCH_END}' torchvision"
INSTALL = "`pip install 'mmlape[onedl]'`"
HELP = 'see `mmlape docs install`, or use `make env` in a clone'


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version, ``(2, 3, 6)`` of ``'2.3.6rc1+cu121'``: NVIDIA's builds are called ``2.5.0a0``."""
    match = re.match(r'\d+(\.\d+)*', version)
    return tuple(map(int, match[0].split('.'))) if match else ()


def package_folder(module: str) -> Path | None:
    """Where ``module`` is; None if it is not installed."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def found_version(package: Package) -> str | None:
    """The version that an import would give, or None if it is not installed."""
    return _version_of(package.module, next(iter(metadata_versions(package).values()), None))


def metadata_versions(package: Package) -> dict[str, str]:
    """The installed distributions of a package: 'onedl', 'original', both or none, with their versions."""
    versions = {}
    for family in ('onedl', 'original'):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[family] = importlib.metadata.version(getattr(package, family)[0])
    return versions


def made_with() -> list[tuple[str, str]]:
    """mmlape, Python, torch and the installed OpenMMLab packages, with their versions."""
    packages = [(package.module, found_version(package)) for package in PACKAGES]
    named = [
        ('mmlape', __version__),
        ('Python', platform.python_version()),
        ('torch', torch_version()),
        *packages,
    ]
    return [(name, version) for name, version in named if version]


def torch_version() -> str | None:
    """torch's version, or None if it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return _version_of('torch', importlib.metadata.version('torch'))
    return _version_of('torch', None)


def _version_of(module: str, by_metadata: str | None) -> str | None:
    """Read a package's version from its ``version.py``, else its metadata; None if it is not installed."""
    folder = package_folder(module)
    if folder is None:
        return None
    file = folder / 'version.py'
    text = file.read_text(encoding='utf-8') if file.is_file() else ''
    match = re.search(r'^__version__\s*=\s*[\'"]([^\'"]+)', text, re.MULTILINE)
    return match[1] if match else by_metadata or 'unknown'


def check_version(package: Package, version: str, families: set[str]) -> None:
    """Refuse a version that is too old, and warn about one that is newer than the tested ones."""
    found, tested = numbers(version), numbers(package.onedl[1])
    # mmcv 2.2.0 and mmengine 0.10.7 are original; above them only the fork has releases.
    forked = package.onedl_since and numbers(package.onedl_since) <= found
    minimum = package.onedl[1] if forked else package.minimum
    if found and found < numbers(minimum):
        raise ImportError(
            f'mmlape needs {package.module} >= {minimum}, but {version} is installed: '
            f'{package.advice(families)}; {HELP}'
        )
    if found[:2] > tested[:2]:
        warnings.warn(
            f'{package.module} {version} is newer than {package.onedl[1]}, the newest that mmlape was tested with',
            stacklevel=2,
        )


def operators_file() -> Path | None:
    """mmcv's operators: a library, a ``.py`` file where torchvision's replace them, or None."""
    spec = importlib.machinery.PathFinder.find_spec('_ext', [str(package_folder('mmcv'))])
    return Path(spec.origin) if spec and spec.origin else None


def has_torchvision_operators() -> bool:
    """Whether torchvision's operators replace mmcv's."""
    file = operators_file()
    return file is None or file.suffix == '.py'


class _TorchvisionOperators:
    """Finds ``mmcv._ext`` in mmlape. The last finder: one in mmcv, compiled or not, comes first."""

    @staticmethod
    def find_spec(name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        file = Path(__file__).with_name('runtime') / 'mmcv_ext.py'
        return importlib.util.spec_from_file_location(name, file) if name == 'mmcv._ext' else None


def provide_operators() -> None:
    """Let torchvision's operators replace those of an mmcv without any: pip hides torch from mmcv's build."""
    if operators_file() is None and _TorchvisionOperators not in sys.meta_path:
        sys.meta_path.append(_TorchvisionOperators)


def compile_advice(families: set[str]) -> str:
    """The commands that compile the operators of the installed mmcv."""
    mmcv = next(each for each in PACKAGES if each.module == 'mmcv')
    name, version = mmcv.original if families == {'original'} else mmcv.onedl
    setuptools = 'setuptools>=77' + ',<81' * (name == 'mmcv')  # of which it needs pkg_resources
    folder = f'{name.replace("-", "_")}-{version}'
    # mmcv's setup.py compiles C++17; without that, torch adds what its headers need: since 2.14, C++20.
    return (
        f"`pip install '{setuptools}' wheel ninja psutil`, then "
        f'`pip download --no-deps --no-build-isolation --no-binary :all: {name}=={version}`, '
        f"""`tar xf {folder}.tar.gz`, `sed -i "s/'-std=c++17'//" {folder}/setup.py` and """
        f'`MMCV_WITH_OPS=1 pip install --no-build-isolation --no-deps --force-reinstall ./{folder}`'
    )


def check_torch() -> None:
    """Refuse a torch that is missing or too old."""
    version = torch_version()
    if version is None or () < numbers(version) < numbers(TORCH):
        found = f', but {version} is installed' if version else ', which is not installed'
        raise ImportError(
            f'mmlape needs torch >= {TORCH}{found}: `{TORCH_INSTALL}`, then mmcv '
            f'again, whose operators fit only the torch that they were compiled with; {HELP}'
        )


def missing() -> list[str]:
    """Required packages that are not installed, by their import names."""
    names = ('torch', *OTHERS, *(package.module for package in PACKAGES if package.required))
    return [name for name in names if package_folder(name) is None]


def _not_installed(names: list[str], command: str) -> str:
    are = 'is' if len(names) == 1 else 'are'
    return f'mmlape needs {", ".join(names)}, which {are} not installed: {command}; {HELP}'


def stack_problem() -> str | None:
    """Return the message of :func:`check_stack`; None if it accepts the dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            check_stack()
        except ImportError as error:
            return str(error)
    return None


def check_stack() -> None:
    """Check the dependencies. torch, mmengine and mmcv are required; mmdet, mmseg and mmpretrain are each needed only
    by their own configs. torchvision's operators replace those of an mmcv that has none.

    Raises:
        ImportError: One is missing or too old; the message names it, the version found, and what to install.
    """
    families = {family for package in PACKAGES for family in metadata_versions(package)}
    absent = missing()
    if absent and not families:
        raise ImportError(_not_installed(absent, INSTALL))
    families = families if len(families) == 1 else set()
    has_toolbox = False
    for package in PACKAGES:
        version = found_version(package)
        if version is None and package.required:
            raise ImportError(
                f'mmlape needs {package.module} >= {package.minimum}, which is not installed: '
                f'{package.advice(families)}; {HELP}'
            )
        if version is None:
            continue
        has_toolbox |= not package.required
        if len(metadata_versions(package)) == 2:
            warnings.warn(
                f'{package.original[0]} and {package.onedl[0]} are both installed and overwrite each '
                f'other in {package.module}/: uninstall both, then install one',
                stacklevel=2,
            )
        check_version(package, version, families)
    check_torch()
    if others := [name for name in absent if name in OTHERS]:
        raise ImportError(_not_installed(others, f'`pip install {" ".join(others)}`'))
    provide_operators()
    if not has_toolbox:
        warnings.warn(
            'none of mmdet, mmseg and mmpretrain is installed: backbones can be built, but to train them one is '
            f'needed; {HELP}',
            stacklevel=2,
        )


def weights_only_fault(version: str) -> str | None:
    """How files get around ``torch.load(..., weights_only=True)`` in a version of torch; None if nothing is known."""
    fault = 'CVE-2026-24747 (memory is corrupted on loading), fixed in torch 2.10'
    return fault if numbers(version) < (2, 10) else None
