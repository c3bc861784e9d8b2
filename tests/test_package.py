"""The wheel: built from the clone's files, installed alone, used without the clone."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from ports import free_port
from site_copies import link_site_packages

import mmlape
from mmlape import compatibility

ROOT = Path(__file__).resolve().parent.parent
NOT_SHIPPED = {'setup_env'}


def tracked(*folders: str) -> set[str]:
    """Files that belong to the project, without what lies about in the clone."""
    listed = subprocess.run(
        ['git', 'ls-files', *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if os.path.lexists(ROOT / name)}


def requirements(monkeypatch) -> dict[str, list[Requirement]]:
    """What setup.py asks for: by extra, and '' for always."""
    told = {}
    monkeypatch.setattr(setuptools, 'setup', told.update)
    runpy.run_path(str(ROOT / 'setup.py'))
    lines = {'': told['install_requires'], **told['extras_require']}
    return {extra: [*map(Requirement, required)] for extra, required in lines.items()}


@pytest.mark.parametrize(
    ('extra', 'file'), [('onedl', 'constraints.txt'), ('openmmlab', 'constraints-openmmlab.txt')]
)
def test_an_extra_holds_all_that_is_needed_in_versions_that_were_tested(extra, file, monkeypatch):
    asked = requirements(monkeypatch)
    lines = (ROOT / 'constraints.txt').read_text() + (ROOT / file).read_text()
    tested = re.findall(r'(?m)^([\w.-]+)==([\w.]+)(?= ;|$)', lines)  # some differ by Python
    needed = {each.name: each.specifier for each in asked[''] + asked[extra]}
    assert {*needed} <= {name for name, _ in tested}
    for name, version in tested:
        assert name not in needed or version in needed[name], (name, version, needed[name])
    family = 'onedl' if extra == 'onedl' else 'original'
    modules = {getattr(package, family)[0] for package in compatibility.PACKAGES[:4]}
    assert {*needed} >= {'torch', *compatibility.OTHERS, *modules}  # all whose absence is refused
    assert str(needed['torch']) == f'<{compatibility.TORCH_END},>={compatibility.TORCH}'


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp('source') / 'mmlape'
    for name in tracked():
        if not name.startswith('tests/'):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope='module')
def wheel(source):
    out = source.parent / 'out'
    command = [sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation']
    subprocess.run([*command, '-w', str(out), str(source)], check=True, capture_output=True)
    (path,) = out.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    """site-packages of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp('empty') / 'venv'
    venv.create(folder, with_pip=True)
    command = [folder / 'bin' / 'python', '-m', 'pip', 'install', '--no-deps', '--no-index', wheel]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    (site,) = folder.glob('lib/python3.*/site-packages')
    return site


@pytest.mark.slow
def test_the_wheel_holds_code_configs_tools_and_pages_and_the_source_tree_links(source, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    links = tracked('mmlape/.mim')
    assert len(links) == 4 and all((source / name).is_symlink() for name in links)
    expected = tracked('mmlape') - links
    for name in tracked('configs', 'tools', 'docs/*.md', 'model-index.yml'):
        if not NOT_SHIPPED & set(Path(name).parts):
            expected.add(f'mmlape/.mim/{name}')
    packed = {name for name in names if '.dist-info/' not in name}
    assert packed == expected
    assert any(name.startswith('mmlape/.mim/configs/lape/') for name in packed)
    assert any(name.endswith('licenses/LICENSE') for name in names)
    assert {path.name for path in (source / 'mmlape/.mim').iterdir()} == {
        Path(x).name for x in links
    }


@pytest.mark.slow
def test_the_wheel_asks_for_nothing_that_replaces_the_users_stack(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        lines = archive.read(name).decode().splitlines()
    required = [line.split(': ')[1] for line in lines if line.startswith('Requires-Dist')]
    always = [line for line in required if 'extra ==' not in line]
    assert not [line for line in always if line.startswith(('mm', 'onedl'))]
    assert always == ['numpy', 'safetensors']
    for extra in ('onedl', 'openmmlab', 'demo', 'test'):
        assert any(
            f'extra == "{extra}"' in line or f"extra == '{extra}'" in line for line in required
        )


@pytest.mark.slow
def test_the_command_of_the_installed_wheel(installed, tmp_path):
    """It lists the tools in the wheel, and its scripts find shipped configs from any folder."""
    others = link_site_packages(tmp_path / 'others')
    program = installed.parents[2] / 'bin' / 'mmlape'

    def run(*arguments):
        own = dict(
            PYTHONPATH=os.pathsep.join(map(str, others)), OMP_NUM_THREADS='1', PORT=str(free_port())
        )
        command = [str(program), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True
        )

    listed = run()
    assert listed.returncode == 0, listed.stderr
    names = {line.split()[0] for line in listed.stdout.splitlines()[2:] if line.strip()}
    assert {'train', 'test', 'picture', 'experiment'} <= names
    # the script, torchrun, its process, the tool and its config
    result = run('dist_train', 'segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512', '1')
    said, ended = result.stderr.splitlines()[-2:]
    assert said.startswith('error: ') and 'data/ade' in said, result.stderr
    assert ended == 'process 0 ended with exit code 1'


def test_the_version_is_the_same_everywhere():
    """In the package, the citation and the newest part of the changelog."""
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    heading = re.search(r'^## (\S+) \((\S+)\)$', (ROOT / 'CHANGELOG.md').read_text(), re.MULTILINE)
    assert citation['version'] == heading[1] == mmlape.__version__
    assert str(citation['date-released']) == heading[2]
