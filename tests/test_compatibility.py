"""`mmlape.registry` on top of missing, old, new and half-built OpenMMLab packages."""

import re
import subprocess
import warnings
from pathlib import Path

import pytest
from site_copies import link_site_packages, run_python

import mmlape
from mmlape import compatibility

ROOT = Path(mmlape.__file__).resolve().parent.parent
PACKAGES = {package.module: package for package in compatibility.PACKAGES}
HERE = next(iter(compatibility.metadata_versions(PACKAGES['mmengine'])))


def distribution(module: str) -> str:
    """What `module` is called in the stack that the tests run on."""
    return getattr(PACKAGES[module], HERE)[0]


@pytest.mark.parametrize('module', ['mmengine', 'torch'])
def test_a_missing_requirement_is_named_with_the_command(module, monkeypatch):
    folder = compatibility.package_folder
    monkeypatch.setattr(
        compatibility, 'package_folder', lambda name: None if name == module else folder(name)
    )
    with pytest.raises(ImportError, match=f'mmlape needs {module} >= .*not installed') as error:
        compatibility.check_stack()
    command = f'{distribution(module)}==' if module in PACKAGES else 'pip install '
    assert command in str(error.value)


def test_advice_stays_with_the_family_that_is_installed():
    mmdet = PACKAGES['mmdet']
    assert 'onedl' not in mmdet.advice({'original'})
    assert 'mmdet==3.3.0' not in mmdet.advice({'onedl'})
    assert mmdet.advice(set()) == "`pip install 'mmlape[onedl]'`"


def test_what_is_missing_beside_openmmlab(monkeypatch):
    monkeypatch.setattr(compatibility, 'missing', lambda: ['torchvision', 'timm'])
    words = (
        'mmlape needs torchvision, timm, which are not installed: `pip install torchvision timm`'
    )
    with pytest.raises(ImportError, match=words):
        compatibility.check_stack()


@pytest.mark.parametrize(
    ('module', 'version', 'needed'),
    [
        ('mmengine', '0.10.6', '0.10.7'),
        ('mmengine', '0.10.11', '0.10.12'),  # the fork's 0.10.11 lacks mmengine/dist
        ('mmcv', '2.0.1', '2.1.0'),
        ('mmcv', '2.3.5', '2.3.6'),
        ('mmdet', '3.2.0', '3.3.0'),
        ('mmseg', '1.2.1', '1.2.2'),
        ('mmpretrain', '1.1.1', '1.2.0'),
    ],
)
def test_a_version_that_is_too_old_is_refused(module, version, needed, monkeypatch):
    found = compatibility.found_version
    answer = lambda package: version if package.module == module else found(package)  # noqa: E731
    monkeypatch.setattr(compatibility, 'found_version', answer)
    with pytest.raises(ImportError, match='pip install') as refused:
        compatibility.check_stack()
    assert f'mmlape needs {module} >= {needed}, but {version} is installed' in str(refused.value)


@pytest.mark.parametrize(
    ('version', 'accepted'), [('2.5.1', False), ('2.6.0', True), ('2.12.0a0+git', True)]
)
def test_torchs_version_by_its_metadata(version, accepted, tmp_path, monkeypatch):
    monkeypatch.setattr(compatibility, 'package_folder', lambda module: tmp_path)
    monkeypatch.setattr(compatibility.importlib.metadata, 'version', lambda name: version)
    if accepted:
        compatibility.check_torch()
    else:
        with pytest.raises(ImportError, match=rf'torch >= 2\.6, but {version} is installed'):
            compatibility.check_torch()


def test_the_commands_that_compile_leave_the_standard_to_torch(tmp_path):
    """mmcv's setup.py asks for C++17; torch 2.14 and later need C++20."""
    for families, folder in (({'original'}, 'mmcv-2.1.0'), (set(), 'onedl_mmcv-2.3.6')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 'setup.py').write_text("cxx = ['-Wall', '-std=c++17']")
        (command,) = re.findall('`(sed .*?)`', compatibility.compile_advice(families))
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        assert (tmp_path / folder / 'setup.py').read_text() == "cxx = ['-Wall', ]"


def test_the_lowest_torch_is_that_of_pip():
    wanted = f'torch>={compatibility.TORCH}'
    assert wanted in (ROOT / 'requirements.txt').read_text().splitlines()


@pytest.mark.slow
def test_the_reason_is_shown_where_mmengine_swallows_it(tmp_path):
    """MMEngine turns the ImportError into "not in the registry"; the log has to say why."""
    site = link_site_packages(tmp_path / 'site', without=('mmcv',))
    code = (
        'from mmengine.registry import MODELS\n'
        "MODELS.build(dict(type='mmlape.VisionTransformer', arch='deit-tiny'))"
    )
    result = run_python(code, *site, ROOT, cwd=tmp_path)
    assert result.returncode == 1
    assert 'KeyError' in result.stderr
    assert 'mmlape cannot be used: mmlape needs mmcv' in result.stderr


@pytest.mark.slow
def test_without_a_toolbox_backbones_work_and_a_warning_says_what_is_missing(tmp_path):
    site = link_site_packages(tmp_path / 'site', without=('mmdet', 'mmseg', 'mmpretrain'))
    code = (
        'from mmlape.registry import MODELS\n'
        'arch = dict(embed_dims=8, depth=1, num_heads=2, mlp_ratio=2)\n'
        "MODELS.build(dict(type='mmlape.VisionTransformer', arch=arch, img_size=32))\n"
        "assert not {'mmdet', 'mmseg', 'mmpretrain'} & set(sys.modules)\n"
    )
    result = run_python(code, *site, ROOT, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert 'none of mmdet, mmseg and mmpretrain is installed' in result.stderr


def test_this_stack_is_accepted_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        compatibility.check_stack()


def test_a_newer_version_is_a_warning_at_most():
    package = PACKAGES['mmcv']
    with pytest.warns(UserWarning, match=r'mmcv 3\.0\.0 is newer than'):
        compatibility.check_version(package, '3.0.0', set())
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        compatibility.check_version(package, '2.3.9', set())


def test_both_distributions_of_one_package_are_reported(monkeypatch):
    both = {'onedl': '2.3.6', 'original': '2.1.0'}
    versions = compatibility.metadata_versions
    monkeypatch.setattr(
        compatibility, 'metadata_versions', lambda p: both if p.module == 'mmcv' else versions(p)
    )
    with pytest.warns(UserWarning, match='mmcv and onedl-mmcv are both installed'):
        compatibility.check_stack()


def test_pins_agree_with_the_constraint_files():
    pins = {}
    for name in ('constraints.txt', 'constraints-openmmlab.txt'):
        for line in (ROOT / name).read_text().splitlines():
            if '==' in line and not line.startswith('#'):
                pins.update([line.split(' ')[0].split('==')])
    for package in compatibility.PACKAGES:
        for name, version in (package.original, package.onedl):
            assert pins[name] == version
