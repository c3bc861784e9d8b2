"""``make env`` with a recorder instead of python, pip and uv; its joined C++ sources with a compiler."""

import ctypes
import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / 'tools' / 'setup_env' / '__main__.py'
LIBRARY = f'python3.{sys.version_info[1]}'
KEY = 'cpython-311-linux_x86-glibc2-torch2.11.0'


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location('setup_env', PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def machine(program, tmp_path, monkeypatch):
    """A machine on which commands are recorded and do as much as the set-up looks at."""
    site = tmp_path / 'site'
    state = SimpleNamespace(path=tmp_path, site=site, calls=[], fails='', pip='', installed='')
    key = ['cpython-311', 'linux/x86', 'glibc2', 'torch2.11.0']
    state.probe = [17, f'{tmp_path}', f'{site}', f'{tmp_path}', '', *key]
    state.wheel, state.wheels = 'mmcv-2-cp3-linux.whl', tmp_path / 'cache/wheels/onedl-mmcv-2.3.6'

    def put(path, text=''):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(command, shell=False, env=None, **options):
        if shell:
            return subprocess.run(command, shell=True, **options)
        parts = [str(part) for part in command]
        text = ' '.join([Path(parts[0]).name, *parts[1:]]).replace('\n', ' ')
        state.calls.append(text)
        after = dict(zip(parts, map(Path, parts[1:]), strict=False))
        answers = {'get_platform': json.dumps(state.probe), 'config list': state.pip}
        answers |= {'pip list': state.installed, '--version': 'Cuda 13.0, release 13.0, V'}
        if state.fails and state.fails in text:
            error = 'WARNING: trying\nERROR: no route to host\nbye'
            return SimpleNamespace(returncode=1, stdout='', stderr=error, poll=lambda: 1)
        if '-m venv' in text:
            put(after['venv'] / 'bin' / 'python')
            (after['venv'] / 'lib' / LIBRARY).mkdir(parents=True, exist_ok=True)
        elif text.startswith('python -m pip install'):
            put(Path(parts[0]).with_name('uv'))
        elif 'download' in text:
            shutil.make_archive(after['-d'] / 'mmcv', 'gztar', tmp_path, 'mmcv-2')
        elif '--no-binary' in text:
            put(site / 'mmcv' / '__init__.py')
            put(site / 'onedl_mmcv-2.dist-info' / 'RECORD', 'a,,\n')
        elif '-w' in parts:
            put(after['-w'] / state.wheel)
            state.compiled_with, state.joined = env, [*after['-w'].rglob('joined')]
            state.setup = (after['-w'] / 'source' / 'setup.py').read_text()
        answer = next((answers[words] for words in answers if words in text), '')
        return SimpleNamespace(returncode=0, stdout=answer, stderr='', poll=lambda: 0)

    recorder = dict(run=run, call=lambda *a, **k: run(*a, **k).returncode, Popen=run, DEVNULL=None)
    monkeypatch.setattr(program, 'subprocess', SimpleNamespace(**recorder))
    put(tmp_path / 'mmcv-2' / 'mmcv/ops/csrc/pytorch' / 'nms.cpp')
    put(tmp_path / 'mmcv-2' / 'setup.py', "cxx = ['-Wall', '-std=c++17']")
    (tmp_path / 'user' / 'lib' / LIBRARY).mkdir(parents=True)
    for name in ('Python.h', 'user/pyvenv.cfg', 'user/bin/python', 'bin/nvcc'):
        put(tmp_path / name)
    monkeypatch.setattr(program, 'CACHE', tmp_path / 'cache')
    monkeypatch.setattr(program.sysconfig, 'get_path', lambda _: tmp_path)
    for name in ('CUDA', 'CXX', 'CFLAGS', 'CPPFLAGS', 'TORCH_CUDA_ARCH_LIST'):
        monkeypatch.delenv(name, raising=False)

    def call(venv='venv', *options) -> str:
        state.calls.clear()
        monkeypatch.setattr(sys, 'argv', ['', '--venv', str(tmp_path / venv), *options])
        program.main()
        return '\n'.join([*state.calls, ''] if state.calls else [])

    def error_line(*arguments) -> str:
        with pytest.raises(SystemExit) as stopped:
            call(*arguments)
        assert re.fullmatch('error: .*', stopped.value.code)
        return stopped.value.code

    state.call, state.error_line = call, error_line
    return state


def make(*arguments: str) -> subprocess.CompletedProcess:
    command = ['env', '-u', 'MAKEFLAGS', 'make', '-C', str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_new_environment_and_a_second_call(program, machine, monkeypatch, capsys):
    monkeypatch.setitem(program.NEWEST, 'openmmlab', (3, 14))
    monkeypatch.setenv('CPPFLAGS', '-g')
    calls = machine.call()
    venv, uv, _, packages, toolboxes, *_, last = calls.splitlines()
    assert venv == f'{Path(sys.executable).name} -m venv {machine.path}/venv'
    assert uv == 'python -m pip install -q --retries 1 uv==0.13.8'
    assert {'torch>=2.6', 'numpy', 'opencv-python-headless'} <= {*packages.split()}
    assert 'imaug' not in packages and 'onedl' not in packages
    assert '--no-build-isolation --no-deps onedl-mmengine==0.10.12' in toolboxes
    assert 'imaug==0.4.3' in toolboxes and 'mmcv' not in toolboxes
    constraints = (machine.path / 'venv/.mmlape/constraints.txt').read_text()
    assert "torch==2.11.0 ; python_full_version < '3.11'\ntorch==" in constraints
    assert '#' not in constraints
    wheel = machine.wheels / f'{KEY}-cpu' / machine.wheel
    assert wheel.is_file() and f' --reinstall --no-deps {wheel}\n' in calls
    assert f' --no-deps -e {ROOT}\n' in calls and 'cpu/build.py' in calls
    assert 'import mmcv._ext, mmdet' in last
    expected = dict(CUDA_VISIBLE_DEVICES='', FORCE_CUDA='0', CPPFLAGS='-g0 -g', MMCV_WITH_OPS='1')
    assert machine.compiled_with | expected == machine.compiled_with and machine.joined
    assert machine.setup == "cxx = ['-Wall', ]"  # torch adds the standard that its headers need
    assert 'CFLAGS' not in machine.compiled_with and int(machine.compiled_with['MAX_JOBS']) >= 1
    assert machine.compiled_with['PATH'].startswith(f'{machine.path}/venv/bin')
    assert re.search(r'venv is ready \(\d+ s\)', capsys.readouterr().out)
    assert machine.call() == ''
    calls = machine.call('second')  # the wheel is in the cache
    assert 'download' not in calls and str(wheel) in calls
    monkeypatch.setenv('CUDA', '0')  # as everything that decides what is installed
    assert 'uv pip install' in machine.call()
    calls = machine.call('original', '--stack', 'openmmlab')
    assert 'mmengine==0.10.7 mmdet==3.3.0' in calls and 'onedl' not in calls
    assert 'holds the stack openmmlab' in machine.error_line('original')


def test_after_a_failure_in_one_line_the_next_call_continues(machine):
    failures = {
        '-m venv': 'is python3-venv installed?: ERROR: no route to host',
        'uv==': 'no network, or pip cannot reach its package index: ERROR: no route to host',
        'uv pip install': 'uv did not succeed (reason above); make env continues here',
        'pip download': 'no source of mmcv: ERROR: no route to host',
        'pip wheel': "mmcv's operators do not compile: the compiler's output is in ",
        'mmseg.datasets': 'the environment does not work: ERROR: no route to host',
    }
    for machine.fails, message in failures.items():
        assert machine.error_line().startswith(f'error: {message}')
        if message.startswith("mmcv's"):
            machine.fails, machine.wheel = '', 'mmcv-2-py3-none-any.whl'  # without operators
            assert 'do not compile' in machine.error_line() and not machine.wheels.exists()
            machine.wheel = 'mmcv-2-cp3-linux.whl'
    assert 'download' not in ' '.join(machine.calls)  # what was compiled is kept
    machine.fails = ''
    assert machine.call() and machine.call() == ''


def test_what_is_refused(machine):
    (machine.path / 'thesis').mkdir()
    (machine.path / 'thesis' / 'thesis.txt').write_text('important')
    assert 'is not an environment' in machine.error_line('thesis')
    assert [path.name for path in (machine.path / 'thesis').iterdir()] == ['thesis.txt']
    (machine.path / 'user' / 'lib' / LIBRARY).rename(machine.path / 'user' / 'lib' / 'python3.8')
    assert f'user does not hold {LIBRARY}: ' in machine.error_line('user')
    assert 'Not a directory' in machine.error_line('Python.h')
    for wrong in (f'PYTHON={machine.path}/none', 'STACK=openmm', 'OPS=numpy'):
        result = make('env', f'VENV={machine.path}/new', wrong)
        lines = [line for line in result.stderr.splitlines() if 'error: ' in line]
        assert result.returncode and len(lines) == 1 and wrong.split('=')[1] in lines[0]
    assert not (machine.path / 'new').exists()


def test_an_environment_that_the_user_brought_is_completed(machine, monkeypatch):
    installed = ['torch==2.9.1+cu128', 'mmdet==3.3.0', 'onedl-mmcv==2.3.6', 'opencv-python==4.1']
    machine.installed = '\n'.join([*installed, 'setuptools==65', 'pillow==13.0.0'])
    calls = machine.call('user')
    file = machine.path / 'user' / '.mmlape' / 'constraints.txt'
    lines = {*file.read_text().splitlines()}
    assert {
        'torch==2.9.1',
        'mmdet==3.3.0',
        "setuptools==80.9.0 ; python_full_version < '3.11'",
    } <= lines
    assert (
        not any(re.match('numpy|pillow', line) for line in lines)
        and 'onedl-mmengine==0.10.12' in calls
    )
    assert not re.search('-m venv|mmdetection|opencv|wheel -v|--reinstall', calls)
    assert machine.call('user') == ''
    assert 'was not made by make env' in make('clean-env', f'VENV={machine.path}/user').stderr
    assert (machine.path / 'user' / 'bin' / 'python').exists()
    machine.installed = ''
    monkeypatch.setenv('CUDA', '0')
    assert machine.call('user') and 'torch==2.11.0 ; python' in file.read_text()


def test_without_a_compiler_mmcv_has_the_stand_in_until_there_is_one(machine, capsys):
    (machine.path / 'Python.h').unlink()
    line = re.search('.*--no-binary.*', machine.call())[0]
    assert 'no C++17 compiler with Python.h: ' in capsys.readouterr().out
    assert '--reinstall --no-deps' in line and line.endswith('.txt onedl-mmcv==2.3.6')
    assert '--build-constraints' in line and '--no-build-isolation' not in line
    stand_in = (ROOT / 'mmlape/runtime/mmcv_ext.py').read_text()
    assert (machine.site / 'mmcv' / '_ext.py').read_text() == stand_in
    assert (machine.site / 'onedl_mmcv-2.dist-info/RECORD').read_text() == 'a,,\nmmcv/_ext.py,,\n'
    assert machine.call() == ''
    (machine.path / 'Python.h').write_text('')
    assert ' wheel -v ' in machine.call()
    machine.installed = 'onedl-mmcv==2.3.6'
    assert '--reinstall' in machine.call('user')  # a stand-in is not the user's own mmcv
    assert '--no-binary' in machine.call('venv', '--ops', 'torchvision')


def test_operators_for_a_gpu(machine, monkeypatch, capsys):
    machine.probe[4] = '8.0;9.0'
    headers = machine.path / 'venv/lib' / LIBRARY / 'site-packages/nvidia/cu13/include'
    headers.mkdir(parents=True)
    (machine.path / 'venv' / 'pyvenv.cfg').write_text('')
    monkeypatch.setenv('CPLUS_INCLUDE_PATH', '/mine')
    machine.call()
    assert machine.compiled_with['CPLUS_INCLUDE_PATH'] == f'/mine:{headers}'
    wheel = machine.wheels / f'{KEY}-cuda13.0-sm8.0_9.0' / machine.wheel
    assert machine.compiled_with['FORCE_CUDA'] == machine.compiled_with['MMCV_WITH_OPS'] == '1'
    assert not {'CPPFLAGS', 'CUDA_VISIBLE_DEVICES'} & machine.compiled_with.keys()
    assert not machine.joined
    wheel.unlink()
    monkeypatch.setenv('CXX', 'no-such-compiler')
    machine.probe[0] = 20
    assert re.search('no C[+][+]20 compiler .*no-such-compiler', machine.error_line())
    monkeypatch.delenv('CXX')
    (machine.path / 'bin' / 'nvcc').unlink()
    machine.call('second')
    assert 'no nvcc: training on the GPU will fail' in capsys.readouterr().out
    monkeypatch.setenv('CUDA', '0')
    assert str(machine.wheels / f'{KEY}-cpu') in machine.call()
    assert 'nvcc' not in capsys.readouterr().out


@pytest.mark.parametrize(
    ('stack', 'version', 'newest'),
    [('onedl', (3, 9, 2), 14), ('onedl', (3, 15, 0), 14), ('openmmlab', (3, 13, 1), 12)],
)
def test_an_untested_python_is_refused(program, machine, monkeypatch, stack, version, newest):
    release = '.'.join(map(str, version))
    found = SimpleNamespace(version_info=version, version=release, executable='p', exit=sys.exit)
    monkeypatch.setattr(program, 'sys', found)
    expected = f'needs Python 3.10 to 3.{newest}, and p is {release}: .* PYTHON=python3.{newest}'
    assert re.search(expected, machine.error_line('new', '--stack', stack))
    assert not (machine.path / 'new').exists()


def test_every_file_names_the_same_pythons(program):
    oldest, newest, original = program.OLDEST[1], *(each[1] for each in program.NEWEST.values())
    listed = re.findall(r'Python :: 3[.](\d+)', (ROOT / 'setup.py').read_text())
    assert listed == [str(minor) for minor in range(oldest, newest + 1)]
    for file in ('Makefile', 'CONTRIBUTING.md', 'README.md', 'docs/install.md'):
        assert f'3.{oldest} to 3.{newest}' in (ROOT / file).read_text()
    makefile = (ROOT / 'Makefile').read_text()
    assert f'(3, {oldest}) <= sys.version_info[:2] <= (3, $(NEWEST))' in makefile
    assert f'$(if $(filter openmmlab,$(STACK)),{original},{newest})' in makefile


def test_uv_gets_the_configuration_of_pip(program):
    listing = r"""
:env:.index-url='e'
global.cert='c'
global.extra-index-url='\na\nb'
global.find-links='/a /b'
global.index-url='g'
global.timeout='9'
install.index-url='i'
install.trusted-host='h'"""
    certificates = {'UV_SYSTEM_CERTS': '1', 'SSL_CERT_FILE': 'c', 'UV_INSECURE_HOST': 'h'}
    indexes = {'UV_DEFAULT_INDEX': 'e', 'UV_INDEX': 'a b', 'UV_FIND_LINKS': '/a,/b'}
    indexes['UV_INDEX_STRATEGY'] = 'unsafe-best-match'
    assert program.uv_variables(listing, {}) == certificates | indexes
    own = {'UV_INDEX_URL': 'mine', 'SSL_CERT_FILE': 'mine', 'PYTHONDONTWRITEBYTECODE': '1'}
    expected = {**certificates, 'UV_FIND_LINKS': '/a,/b', 'UV_COMPILE_BYTECODE': '1', **own}
    assert program.uv_variables(listing, own) == expected


# The first four would not compile, or would mean something else, after another one in the same unit.
SOURCES = {
    'align.cpp': 'static float part(float x) { return x / 2; } float align(float x) { return part(x); }',
    'cpu/least.cpp': '#define least(a, b) ((a) < (b) ? (a) : (b))\nint smaller(int a, int b) { return least(a, b); }',
    'cpu/spaces.cpp': '#include <cmath>\nusing namespace std;\nfloat size(float x) { return abs(x); }',
    'cpu/sum.cpp': 'static int least(int a, int b) { return a + b; }\nint sum(int a, int b) { return least(a, b); }',
    'bind.cpp': 'float align(float);\nint smaller(int, int);\nfloat size(float);\nint sum(int, int);\n'
    'extern "C" float all() { return align(8) + smaller(5, 3) + size(-.5f) + sum(1, 2); }',
    **{f'leak{n}.cpp': f'#define leak {n}\nint leak{n}() {{ return leak; }}' for n in range(9)},
    **{f'more{n}.cpp': f'int more{n}() {{ return 1; }}' for n in range(20)},
    **{
        f'f{n}.cpp': f'static int part() {{ return {n}; }} int f{n}() {{ return part(); }}'
        for n in range(9)
    },
}


def test_joined_sources_are_each_compiled_once_and_mean_the_same(program, tmp_path):
    (tmp_path / 'cpu').mkdir()
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(f'{text}\n')

    def compiled():
        files = [*tmp_path.glob('*.cpp'), *tmp_path.glob('cpu/*.cpp')]
        library = tmp_path / f'library_{len(files)}.so'
        subprocess.run(['c++', '-std=c++17', '-shared', '-fPIC', '-o', library, *files], check=True)
        listed = subprocess.run(['nm', '-D', library], capture_output=True, text=True, check=True)
        function = ctypes.CDLL(str(library)).all
        function.restype = ctypes.c_float
        return function(), {line.split()[-1] for line in listed.stdout.splitlines()}

    before = compiled()
    assert before[0] == 4 + 3 + 0.5 + 3
    program.join_sources(tmp_path)
    texts = [path.read_text() for path in tmp_path.glob('unit_*.cpp')]
    assert sorted(re.findall('"joined/(.*)"', ''.join(texts))) == sorted(SOURCES)
    assert len(texts) == 11  # eleven files leave a macro or a namespace behind
    assert max(text.count('#') for text in texts) <= 6
    assert compiled() == before


def test_every_requirement_has_a_tested_version(program):
    pinned = [line.split('==')[0] for line in program.read_lines('constraints-openmmlab.txt')]
    left = program.without(program.read_lines('requirements.txt'), [*pinned, 'pip'])
    assert not left and {*program.STACKS['openmmlab'], *program.BUILD_TOOLS} <= {*pinned}
    assert (
        pinned.count('torch') == pinned.count('setuptools') == 1
    )  # instead of those of the default stack


def test_the_matrix_replaces_the_row_of_the_same_python_packages_and_torch():
    merged = runpy.run_path(str(ROOT / 'tools/developers/matrix.py'))['merged']
    begin, end = '<!-- matrix: written by make matrix -->\n', '<!-- end of the matrix -->'
    page = f'a\n{begin}{end}\nb'
    for cells in (
        '3.10.2 | onedl | 2.11.0 | 7',
        '3.9.1 | onedl | 2.5.1 | 8',
        '3.10.4 | onedl | 2.11.0 | 9',
    ):
        page = merged(page, f'| {cells} |')
    *_, first, second = page.partition(end)[0].splitlines()
    assert (first, second) == ('| 3.9.1 | onedl | 2.5.1 | 8 |', '| 3.10.4 | onedl | 2.11.0 | 9 |')
    assert page.startswith(f'a\n{begin}| Python |') and page.endswith(f'{end}\nb')


def test_help_lists_every_target():
    listed = make('help').stdout
    for target in ('env', 'demo', 'test', 'test-slow', 'lint', 'format', 'clean', 'help'):
        assert f'make {target} ' in listed
