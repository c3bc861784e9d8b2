"""The set-up of a clone: what it refuses before touching anything, what it keeps, and how it goes on."""

import ctypes
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / 'tools' / 'setup_env'


@pytest.fixture(scope='module')
def parts():
    """The modules of the program, which is run as a folder and is not a package."""
    sys.path.insert(0, str(PROGRAM))
    names = {'common': 'common', 'checks': 'checks', 'wheel': 'mmcv_wheel', 'units': 'units'}
    modules = {short: importlib.import_module(name) for short, name in names.items()}
    spec = importlib.util.spec_from_file_location('setup_env_main', PROGRAM / '__main__.py')
    modules['main'] = importlib.util.module_from_spec(spec)
    sys.modules['setup_env_main'] = modules['main']
    spec.loader.exec_module(modules['main'])
    yield SimpleNamespace(**modules)
    sys.path.remove(str(PROGRAM))


@pytest.fixture
def about(parts):
    return parts.common.ask(sys.executable, parts.common.ABOUT_PYTHON)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return path


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ['make', '-C', str(ROOT), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, 'MAKEFLAGS': '', **variables},
    )


def error_line(result: subprocess.CompletedProcess) -> str:
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if line.startswith('error: ')]
    assert len(lines) == 1, result.stderr
    assert 'Traceback' not in result.stderr
    return lines[0]


# -- refusals -------------------------------------------------------------------------------------


def test_python_that_is_too_old_is_refused_in_one_line(parts, tmp_path):
    old = script(tmp_path / 'bin' / 'python', 'echo \'{"version": [3, 9, 18]}\'')
    with pytest.raises(
        parts.common.SetupError, match=r'needs Python >= 3\.10, and .* has 3\.9\.18'
    ):
        parts.checks.check_python(tmp_path, None)
    assert old.is_file()


def test_make_refuses_an_interpreter_that_is_too_old_or_not_there(tmp_path):
    old = script(tmp_path / 'python3.9', 'echo "error: mmlape needs Python >= 3.10" >&2; exit 1')
    venv = tmp_path / 'venv'
    assert 'Python >= 3.10' in error_line(make('env', f'VENV={venv}', f'PYTHON={old}'))
    missing = error_line(make('env', f'VENV={venv}', 'PYTHON=no-such-python'))
    assert 'no-such-python' in missing
    assert not venv.exists()


def test_another_python_than_the_one_of_the_environment_is_refused(parts, tmp_path):
    script(tmp_path / 'bin' / 'python', 'echo \'{"version": [3, 12, 1]}\'')
    asked = script(tmp_path / 'python3.10', 'echo \'{"version": [3, 10, 13]}\'')
    with pytest.raises(parts.common.SetupError, match='remove that folder or give another'):
        parts.checks.check_python(tmp_path, str(asked))


def test_a_folder_that_is_no_environment_is_refused_and_left_alone(tmp_path):
    (tmp_path / 'thesis.txt').write_text('important')
    assert 'is not an environment' in error_line(make('env', f'VENV={tmp_path}'))
    assert [path.name for path in tmp_path.iterdir()] == ['thesis.txt']


def test_an_unknown_stack_is_refused(tmp_path):
    line = error_line(make('env', f'VENV={tmp_path / "venv"}', 'STACK=openmm'))
    assert 'STACK=openmm is unknown; choose onedl or openmmlab' in line


def test_the_stack_of_an_environment_cannot_change(parts, tmp_path):
    setup = parts.main.Setup(tmp_path / 'venv', 'onedl')
    setup.save()
    with pytest.raises(parts.common.SetupError, match='holds the stack onedl, not openmmlab'):
        parts.main.Setup(tmp_path / 'venv', 'openmmlab').load()


def test_a_torch_that_is_too_old_is_refused_in_somebody_elses_environment(
    parts, tmp_path, monkeypatch
):
    script(tmp_path / 'bin' / 'python', f'exec {sys.executable} "$@"')
    (tmp_path / 'pyvenv.cfg').write_text('')
    setup = parts.main.Setup(tmp_path, 'onedl')
    monkeypatch.setattr(parts.main.Setup, 'installed', lambda self: {'torch': '2.4.1+cu121'})
    expected = r'needs torch >= 2\.5, and .* has 2\.4\.1\+cu121: `pip install'
    with pytest.raises(parts.common.SetupError, match=expected):
        parts.main.set_up(setup)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ['bin', 'pyvenv.cfg']
    for version in ('2.5.0', '2.10.0+cpu', '3.0'):
        parts.checks.check_torch(tmp_path, {'torch': version})
    parts.checks.check_torch(tmp_path, {})


def test_too_little_disk_is_refused(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=7.9e9))
    with pytest.raises(parts.common.SetupError, match=r'has 7\.9 GB of free disk; .* needs 8 GB'):
        parts.checks.check_space(tmp_path / 'not' / 'there' / 'yet')


def test_a_missing_compiler_is_refused(parts, about, monkeypatch, tmp_path):
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.delenv('CXX', raising=False)
    with pytest.raises(
        parts.common.SetupError, match=r'no C\+\+ compiler \(c\+\+\), .*: install one'
    ):
        parts.checks.check_compiler(about)


def test_windows_is_refused_in_one_line(tmp_path):
    code = 'import runpy, sys; sys.modules["fcntl"] = None; runpy.run_path(sys.argv[1], run_name="__main__")'
    command = [sys.executable, '-c', code, str(PROGRAM), '--venv', str(tmp_path / 'venv')]
    result = subprocess.run(command, capture_output=True, text=True)
    assert 'on Windows call it in WSL2' in error_line(result)
    assert not (tmp_path / 'venv').exists()


def test_a_compiler_that_does_not_compile_is_refused(parts, about, monkeypatch, tmp_path):
    broken = script(tmp_path / 'broken', 'echo "cannot find crt1.o" >&2; exit 1')
    monkeypatch.setenv('CXX', str(broken))
    with pytest.raises(
        parts.common.SetupError, match=r'does not compile C\+\+17: cannot find crt1'
    ):
        parts.checks.check_compiler(about)


def test_missing_headers_are_refused(parts, tmp_path):
    about = {'include': str(tmp_path), 'version': [3, 11, 2]}
    with pytest.raises(parts.common.SetupError, match=r'Python\.h is missing .* python3\.11-dev'):
        parts.checks.check_compiler(about)


@pytest.mark.slow
def test_without_a_network_nothing_is_left_behind(tmp_path):
    nowhere = 'http://127.0.0.1:9/simple'
    result = make(
        'env',
        f'VENV={tmp_path / "venv"}',
        PIP_INDEX_URL=nowhere,
        PIP_EXTRA_INDEX_URL=nowhere,
        PIP_CONFIG_FILE=os.devnull,
        XDG_CACHE_HOME=str(tmp_path / 'cache'),
    )
    assert error_line(result).startswith('error: no network, or pip cannot reach its package index')
    assert not (tmp_path / 'venv').exists()


# -- the kept wheel -------------------------------------------------------------------------------


def wheel_with(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, 'w') as archive:
        for name in names:
            archive.writestr(name, '')
    return path


def test_only_a_wheel_with_operators_is_kept(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(parts.wheel, 'CACHE', tmp_path)
    folder = tmp_path / 'wheels' / 'mmcv-2.1.0' / 'key'
    find = parts.wheel.kept_wheel
    assert find('mmcv', '2.1.0', 'key') is None
    wheel_with(folder / 'a.whl', 'mmcv/__init__.py', 'mmcv/ops/_ext.py')
    assert find('mmcv', '2.1.0', 'key') is None
    (folder / 'b.whl').write_bytes(b'half a wheel')
    assert find('mmcv', '2.1.0', 'key') is None
    good = wheel_with(folder / 'c.whl', 'mmcv/_ext.cpython-311-x86_64-linux-gnu.so')
    assert find('mmcv', '2.1.0', 'key') == good


def test_the_key_tells_apart_what_a_wheel_depends_on(parts, about):
    key, cuda = parts.wheel.wheel_key, parts.wheel.Cuda
    keys = {
        key(about, '2.11.0', None),
        key({**about, 'tag': 'cpython-399'}, '2.11.0', None),
        key({**about, 'platform': 'linux-aarch64'}, '2.11.0', None),
        key(about, '2.12.0', None),
        key(about, '2.11.0', cuda(Path('/cuda'), '13.0', '9.0')),
        key(about, '2.11.0', cuda(Path('/cuda'), '13.0', '8.0;9.0')),
        key(about, '2.11.0', cuda(Path('/cuda'), '12.8', '9.0')),
    }
    assert len(keys) == 7
    assert not any('/' in key or ';' in key for key in keys)


def test_cuda_needs_a_gpu_and_nvcc(parts, tmp_path, monkeypatch):
    for name in ('CUDA', 'CUDA_HOME', 'TORCH_CUDA_ARCH_LIST'):
        monkeypatch.delenv(name, raising=False)
    toolkit = tmp_path / 'toolkit'
    script(toolkit / 'bin' / 'nvcc', 'echo "Cuda compilation tools, release 13.0, V13.0.88"')
    monkeypatch.setenv('PATH', f'{toolkit / "bin"}:/usr/bin:/bin')
    monkeypatch.setattr(shutil, 'which', which_without('nvidia-smi'))
    assert parts.wheel.find_cuda() is None
    # A login node: no GPU of its own.
    monkeypatch.setenv('TORCH_CUDA_ARCH_LIST', '8.0;9.0')
    found = parts.wheel.find_cuda()
    assert (found.home, found.release, found.archs) == (toolkit, '13.0', '8.0;9.0')
    monkeypatch.setenv('PATH', '/usr/bin:/bin')
    monkeypatch.setattr(shutil, 'which', which_without('nvidia-smi', 'nvcc'))
    if not Path('/usr/local/cuda/bin/nvcc').is_file():
        assert parts.wheel.find_cuda() is None

    monkeypatch.undo()
    script(tmp_path / 'bin' / 'nvidia-smi', 'printf "9.0\\n8.0\\n9.0\\n"')
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}:{toolkit / "bin"}:/usr/bin:/bin')
    monkeypatch.delenv('CUDA', raising=False)
    monkeypatch.setenv('CUDA_HOME', str(toolkit))
    monkeypatch.delenv('TORCH_CUDA_ARCH_LIST', raising=False)
    found = parts.wheel.find_cuda()
    assert (found.home, found.release, found.archs) == (toolkit, '13.0', '8.0;9.0')
    monkeypatch.setenv('CUDA', '0')
    assert parts.wheel.find_cuda() is None


def which_without(*names: str):
    find = shutil.which
    return lambda command, *rest: None if command in names else find(command, *rest)


@pytest.mark.slow
def test_an_nvcc_of_another_cuda_than_torchs_is_refused(parts):
    other = parts.wheel.Cuda(Path('/cuda'), '9.2', '9.0')
    with pytest.raises(parts.common.SetupError, match=r'nvcc 9\.2 cannot compile for'):
        parts.wheel.build_environment({}, Path(sys.executable), other)


def test_operators_for_the_cpu_are_compiled_as_if_there_were_no_gpu(parts):
    built = parts.wheel.build_environment({'PATH': '/bin'}, Path(sys.executable), None)
    assert built['CUDA_VISIBLE_DEVICES'] == ''
    assert (built['FORCE_CUDA'], built['MMCV_WITH_OPS']) == ('0', '1')
    # Not in CFLAGS, which setuptools takes in place of Python's own flags: without optimizations, that is.
    assert (built['CPPFLAGS'], 'CFLAGS' in built) == ('-g0', False)
    own = parts.wheel.build_environment({'CPPFLAGS': '-g'}, Path(sys.executable), None)
    assert own['CPPFLAGS'] == '-g0 -g'


# -- joined sources -------------------------------------------------------------------------------

# Each of the first four would be a mistake behind another one in the same unit, or mean something else.
SOURCES = {
    'align.cpp': 'static float part(float x) { return x / 2; }\nfloat align(float x) { return part(x); }',
    'rotated.cpp': 'static float part(float x) { return x / 4; }\nfloat rotated(float x) { return part(x); }',
    'cpu/least.cpp': '#define least(a, b) ((a) < (b) ? (a) : (b))\nint smaller(int a, int b) { return least(a, b); }',
    'cpu/spaces.cpp': '#include <cmath>\nusing namespace std;\nfloat size(float x) { return abs(x); }',
    'cpu/sum.cpp': 'static int least(int a, int b) { return a + b; }\nint sum(int a, int b) { return least(a, b); }',
    'bind.cpp': (
        'float align(float);\nfloat rotated(float);\nint smaller(int, int);\nfloat size(float);\nint sum(int, int);\n'
        'extern "C" float all() { return align(8) + rotated(8) + smaller(5, 3) + size(-.5f) + sum(1, 2); }'
    ),
    'unused.cpp': 'int unused() { return 1; }',
}


@pytest.fixture
def sources(parts, tmp_path):
    """An unpacked mmcv with sources of a few lines, and its folder of them."""
    folder = tmp_path / 'source' / parts.units.SOURCES
    for name, text in SOURCES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{text}\n')
    return SimpleNamespace(root=tmp_path / 'source', folder=folder)


def test_joined_sources_are_each_compiled_once_and_mean_the_same(parts, sources, monkeypatch):
    monkeypatch.setattr(parts.units, 'COUNT', 2)

    def compiled(*files: Path) -> tuple[float, set]:
        library = sources.root / f'library_{len(files)}.so'
        subprocess.run(['c++', '-std=c++17', '-shared', '-fPIC', '-o', library, *files], check=True)
        listed = subprocess.run(['nm', '-D', library], capture_output=True, text=True, check=True)
        run = ctypes.CDLL(str(library)).all
        run.restype = ctypes.c_float
        return run(), {line.split()[-1] for line in listed.stdout.splitlines()}

    found = [*sources.folder.glob('*.cpp'), *sources.folder.glob('cpu/*.cpp')]
    value, symbols = compiled(*found)
    assert value == 4 + 2 + 3 + 0.5 + 3
    assert not parts.units.are_joined(sources.root)
    parts.units.join_sources(sources.root)
    assert parts.units.are_joined(sources.root)
    units = sorted([*sources.folder.glob('*.cpp'), *sources.folder.glob('cpu/*.cpp')])
    assert 1 < len(units) < len(SOURCES)
    included = re.findall(r'"joined/(.*)"', ''.join(unit.read_text() for unit in units))
    assert sorted(included) == sorted(SOURCES)
    assert compiled(*units) == (value, symbols)


def test_sources_are_spread_over_the_units_and_what_does_not_fit_gets_its_own(parts):
    texts = {Path(f'{number:02}.cpp'): f'void f{number}() {{}}\n' * 9 for number in range(40)}
    assert [len(unit) for unit in parts.units.arrange(texts, 8)] == [5] * 8
    alike = {Path(f'same_{number}.cpp'): 'static void same() {}' for number in range(10)}
    units = parts.units.arrange({**texts, **alike}, 8)
    assert len(units) == 10
    assert sorted(path for unit in units for path in unit) == sorted({**texts, **alike})
    assert all(len(alike.keys() & set(unit)) == 1 for unit in units)


def test_where_joined_sources_do_not_compile_the_ordinary_ones_are(parts, tmp_path, capsys):
    """Once, with a line that says so; an error of the ordinary ones is the user's to see."""
    work, built = tmp_path / 'source', []

    def fetch(joined):
        work.mkdir()
        if joined:
            (work / parts.units.SOURCES / 'joined').mkdir(parents=True)
        return work

    def build(source, works=False):
        built.append(parts.units.are_joined(source))
        if built[-1] or not works:
            raise parts.common.SetupError('it failed')
        return source / 'mmcv.whl'

    joined_or_not = parts.wheel.joined_or_not
    assert (
        joined_or_not(fetch, lambda source: build(source, works=True), joined=True).parent == work
    )
    assert built == [True, False]
    assert capsys.readouterr().out.count('do not compile joined') == 1
    shutil.rmtree(work)
    with pytest.raises(parts.common.SetupError, match='it failed'):
        joined_or_not(fetch, build, joined=True)
    assert built == [True, False, True, False]
    shutil.rmtree(work)
    with pytest.raises(parts.common.SetupError, match='it failed'):
        joined_or_not(fetch, build, joined=False)
    assert built == [True, False, True, False, False]


def test_an_archive_is_joined_where_only_the_cpus_operators_are_compiled(
    parts, tmp_path, monkeypatch
):
    def download(command, **_):
        folder = Path(command[command.index('-d') + 1])
        source = tmp_path / 'mmcv-2.1.0' / parts.units.SOURCES
        source.mkdir(parents=True, exist_ok=True)
        (source / 'nms.cpp').write_text('')
        with tarfile.open(folder / 'mmcv-2.1.0.tar.gz', 'w:gz') as archive:
            archive.add(tmp_path / 'mmcv-2.1.0', 'mmcv-2.1.0')
        return SimpleNamespace(returncode=0, stderr='')

    monkeypatch.setattr(subprocess, 'run', download)
    for joined in (True, False):
        work = tmp_path / f'work_{joined}'
        source = parts.wheel.fetch_source(Path('python'), {}, 'mmcv', '2.1.0', work, joined)
        assert parts.units.are_joined(source) is joined
        assert (source / parts.units.SOURCES / 'nms.cpp').exists() is not joined
        # Interrupted: what is there is taken as it is, with its object files.
        again = parts.wheel.fetch_source(Path('python'), {}, 'mmcv', '2.1.0', work, not joined)
        assert again == source
        assert parts.units.are_joined(again) is joined


def test_without_its_own_operator_an_environment_is_ready_all_the_same(parts, capsys):
    operators, ran = importlib.import_module('operators'), []

    def run(*command, quiet):
        ran.append(command)
        return len(ran) == 1

    for _ in range(2):
        operators.compile_operators(SimpleNamespace(python='python', run=run))
    assert ran == [('python', ROOT / 'mmlape' / 'ops' / 'build.py')] * 2
    folder = ROOT / 'mmlape' / 'ops'
    assert {*operators.SOURCES} == {folder / 'build.py', *(folder / 'csrc').iterdir()}
    assert capsys.readouterr().out.count('slower PyTorch form') == 1


# -- steps ----------------------------------------------------------------------------------------


@pytest.fixture
def quick(parts, tmp_path, monkeypatch):
    """A set-up whose steps only note that they ran."""
    done = []

    def note(name):
        def step(setup):
            setup.python.parent.mkdir(parents=True, exist_ok=True)
            if not setup.python.exists():
                setup.python.symlink_to(sys.executable)
            done.append(name)

        return step

    monkeypatch.setattr(parts.main, 'STEPS', {name: note(name) for name in parts.main.STEPS})
    monkeypatch.setattr(parts.main, 'needs_compiler', lambda *_: False)
    return SimpleNamespace(done=done, new=lambda: parts.main.Setup(tmp_path / 'venv', 'onedl'))


def test_an_interrupted_set_up_goes_on_where_it_stopped(parts, quick, monkeypatch):
    def interrupted(setup):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(parts.main.STEPS, 'mmcv', interrupted)
        with pytest.raises(KeyboardInterrupt):
            parts.main.set_up(quick.new())
    assert quick.done == ['venv', 'packages', 'toolboxes']
    parts.main.set_up(quick.new())
    assert quick.done == ['venv', 'packages', 'toolboxes', 'mmcv', 'mmlape']
    parts.main.set_up(quick.new())
    assert len(quick.done) == 5


def test_a_changed_requirement_repeats_only_its_step(parts, quick, monkeypatch):
    parts.main.set_up(quick.new())
    quick.done.clear()
    wanted = parts.main.Setup.wanted
    monkeypatch.setattr(
        parts.main.Setup, 'wanted', lambda self: {**wanted(self), 'packages': 'changed'}
    )
    parts.main.set_up(quick.new())
    assert quick.done == ['packages']


def test_what_is_installed_in_somebody_elses_environment_is_kept(parts, tmp_path):
    setup = parts.main.Setup(tmp_path / 'venv', 'onedl', ours=False)
    installed = {'torch': '2.9.1+cu128', 'mmcv': '2.2.0', 'setuptools': '65.5.0'}
    lines = parts.main.constraints_for(setup, installed).read_text().splitlines()
    assert [line for line in lines if line.startswith('torch==')] == ['torch==2.9.1']
    assert [line for line in lines if line.startswith('setuptools==')] == ['setuptools==80.9.0']
    assert parts.main.own_version(setup, installed, 'mmcv') == '2.2.0'
    assert parts.main.own_version(setup, installed, 'mmdet') is None


def test_an_environment_that_was_there_before_is_not_taken_for_ours(parts, tmp_path):
    script(tmp_path / 'venv' / 'bin' / 'python', f'exec {sys.executable} "$@"')
    (tmp_path / 'venv' / 'pyvenv.cfg').write_text('')
    setup = parts.main.Setup(tmp_path / 'venv', 'onedl')
    setup.load()
    assert not setup.ours
    setup.save()
    again = parts.main.Setup(tmp_path / 'venv', 'onedl')
    again.load()
    assert not again.ours
    result = make('clean-env', f'VENV={tmp_path / "venv"}')
    assert 'was not made by make env' in error_line(result)
    assert (tmp_path / 'venv' / 'bin' / 'python').exists()


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize('stack', ['onedl', 'openmmlab'])
def test_every_requirement_has_a_tested_version(parts, stack):
    read, name = parts.common.read_requirements, parts.common.name_of
    pinned = {name(line) for line in read(ROOT / parts.main.CONSTRAINTS[stack])}
    wanted = {name(line) for line in read(ROOT / 'requirements.txt')}
    wanted -= set(parts.main.STACKS['onedl'].values())
    wanted |= set(parts.main.STACKS[stack].values())
    assert wanted - pinned == {'pip'}


def test_a_state_file_is_written_whole(parts, tmp_path):
    path = tmp_path / 'deep' / 'state.json'
    parts.common.write_whole(path, json.dumps({'ours': True}))
    assert json.loads(path.read_text()) == {'ours': True}
    assert [entry.name for entry in path.parent.iterdir()] == ['state.json']


def test_help_lists_every_target():
    listed = make('help').stdout
    for target in ('env', 'demo', 'test', 'test-slow', 'lint', 'format', 'clean', 'help'):
        assert f'make {target} ' in listed
