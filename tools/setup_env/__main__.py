"""Sets up the environment of a clone with uv (``make env``); a digest in it tells whether it is complete."""

import argparse
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmlape'
# The oldest and the newest, as in the Makefile: mmcv 2.1.0's setup.py fails from Python 3.13 on (PEP 667).
OLDEST, NEWEST = (3, 10), {'onedl': (3, 14), 'openmmlab': (3, 12)}
CONSTRAINTS = {'onedl': 'constraints.txt', 'openmmlab': 'constraints-openmmlab.txt'}
# Two families of the same packages. They and imaug are installed without dependencies: some would need libGL.
STACKS = {
    'onedl': 'onedl-mmcv onedl-mmengine onedl-mmdetection onedl-mmsegmentation onedl-mmpretrain',
    'openmmlab': 'mmcv mmengine mmdet mmsegmentation mmpretrain',
}
STACKS = {k: [*v.split(), 'imaug', 'imagecorruptions-imaug'] for k, v in STACKS.items()}
BUILD_TOOLS = ('ninja', 'psutil', 'setuptools', 'uv', 'wheel')  # always as tested
PIP_TO_UV = {
    'index-url': 'UV_DEFAULT_INDEX',
    'extra-index-url': 'UV_INDEX',
    'find-links': 'UV_FIND_LINKS',
    'trusted-host': 'UV_INSECURE_HOST',
    'cert': 'SSL_CERT_FILE',
}
PROBE = """import json, os, platform, sys, torch; from importlib.metadata import version
from sysconfig import get_path, get_platform; from torch.utils.cpp_extension import CUDA_HOME
gpus = {'%d.%d' % torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
standard = 20 if torch.__version__ >= (2, 14) else 17  # of C++, for torch's headers
print(json.dumps([standard, get_path('include'), get_path('purelib'), CUDA_HOME or '/',
os.environ.get('TORCH_CUDA_ARCH_LIST') or ';'.join(sorted(gpus)),
sys.implementation.cache_tag, get_platform(), ''.join(platform.libc_ver()), 'torch' + version('torch')]))"""
# Declarations at the start of a line in mmcv's sources: functions (macros are in capitals), types and aliases.
DECLARED = r'(?m)^(?! )[\w:<>&*, ]*?\b(\w*[a-z]\w*)\(|^(?:struct|class|enum) (\w+)|^using [\w:]*?(\w+)(?:;| =)'
say = functools.partial(print, '[env]', flush=True)


def output(error: str, *command: object, **options: object) -> str:
    """Return what `command` prints. If it fails, exit with `error` and the command's last error message."""
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines() or ['no message']
        errors = [line for line in lines if 'error' in line.lower()] or lines
        sys.exit(f'error: {error}: {errors[-1].strip()}')
    return result.stdout


def read_lines(file: str) -> list:
    """The lines of a requirements file without comments; its versions replace those of one that it includes."""
    text = (ROOT / file).read_text(encoding='utf-8')
    included = [line for other in re.findall(r'(?m)^-c (.*)', text) for line in read_lines(other)]
    own = [line.strip() for line in re.findall(r'(?m)^\w[^#\n]*', text)]
    return without(included, [re.match(r'[\w.-]+', line)[0] for line in own]) + own


def without(lines: list, names: object) -> list:
    return [line for line in lines if re.match(r'[\w.-]+', line)[0] not in names]


def uv_variables(listing: str, environment: dict) -> dict:
    """`environment` with pip's configuration, which uv does not read; `listing` is from ``pip config list``."""
    # The system's certificates include those of a company's proxy. pip takes the best version of all indexes.
    found = {'UV_SYSTEM_CERTS': '1', 'UV_INDEX_STRATEGY': 'unsafe-best-match'}
    if environment.get(
        'PYTHONDONTWRITEBYTECODE'
    ):  # else each process compiles what it imports: 10 s
        found['UV_COMPILE_BYTECODE'] = '1'
    for scope in ('global', 'install', ':env:'):  # the last one wins, as in pip
        for option, value in re.findall(rf"(?m)^{scope}\.([\w-]+)='(.*)'$", listing):
            if option in PIP_TO_UV:
                separator = ',' if option == 'find-links' else ' '
                found[PIP_TO_UV[option]] = separator.join(value.replace(r'\n', ' ').split())
    if any(re.match('UV_.*INDEX', name) for name in environment):  # uv is configured itself
        found = {name: value for name, value in found.items() if 'INDEX' not in name}
    return {**found, **environment}


class Setup:
    """One environment. Its ``state`` says whether make env created it, for which stack and from what."""

    def __init__(self, venv: Path, stack: str, ops: str):
        self.venv, self.ops = Path(os.path.abspath(venv)), ops
        self.python, self.uv = self.venv / 'bin' / 'python', self.venv / 'bin' / 'uv'
        self.folder, self.state = self.venv / '.mmlape', {'ours': True, 'stack': stack}
        content = {*os.listdir(venv)} if venv.is_dir() else {}
        version = f'python3.{sys.version_info[1]}'
        if 'bin' in content and not (venv / 'lib' / version).is_dir():
            sys.exit(
                f'error: {venv} does not hold {version}: give another VENV=path, or make clean-env'
            )
        if '.mmlape' in content:
            self.state = json.loads((self.folder / 'state.json').read_text(encoding='utf-8'))
        elif content:
            self.state['ours'] = False
            if not content & {'pyvenv.cfg', 'conda-meta'}:
                sys.exit(f'error: VENV={venv} is not an environment; give a new folder')
        if self.state['stack'] != stack:
            sys.exit(f'error: {venv} holds the stack {self.state["stack"]}: give another VENV=path')
        self.constraints, self.names = read_lines(CONSTRAINTS[stack]), STACKS[stack]
        self.pins = {line.split('==')[0]: line for line in self.constraints}

    def save(self, **state: object) -> None:
        self.state |= state
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / 'state.json').write_text(json.dumps(self.state, indent=1), encoding='utf-8')

    def digest(self) -> str:
        """Hash everything that decides what is installed, compilers included."""
        files = ['requirements.txt', 'setup.py', 'pyproject.toml', 'mmlape/version.py']
        files = [*(ROOT / file for file in files), *sorted(ROOT.glob('mmlape/**/csrc/*'))]
        names = ('CUDA', 'CUDA_HOME', 'TORCH_CUDA_ARCH_LIST')
        tools = ('nvidia-smi', 'nvcc', os.environ.get('CXX', 'c++'))
        parts = [str(ROOT), self.ops, self.constraints, *map(os.environ.get, names)]
        parts += [*map(shutil.which, tools), *map(Path.read_text, files)]
        parts += [Path(sysconfig.get_path('include'), 'Python.h').exists()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def install(self, *arguments: object) -> None:
        command = [self.uv, 'pip', 'install', '-q', '--python', self.python, *arguments]
        if subprocess.call([*map(str, command)], env=self.variables):
            sys.exit('error: uv did not succeed (reason above); make env continues here')

    def create(self) -> None:
        self.save()
        pip = [self.python, '-m', 'pip']
        if not self.uv.is_file():
            if self.state['ours']:
                say(f'1/5 creating {self.venv} with Python {sys.version.split()[0]} (seconds)')
                output('is python3-venv installed?', sys.executable, '-m', 'venv', self.venv)
            error = 'no network, or pip cannot reach its package index'
            output(error, *pip, 'install', '-q', '--retries', '1', self.pins['uv'])
        path = f'{self.python.parent}{os.pathsep}{os.environ["PATH"]}'
        own = {**os.environ, 'PATH': path, 'VIRTUAL_ENV': str(self.venv)}
        self.variables = uv_variables(output('pip does not run', *pip, 'config', 'list'), own)

    def install_packages(self) -> None:
        """All but mmcv. What a user brought along stays, a toolbox under either name."""
        self.kept, lines, left_out = {}, self.constraints, [*STACKS['onedl']]
        if not self.state['ours']:
            command = [self.uv, 'pip', 'list', '-q', '--python', self.python, '--format=freeze']
            found = output('uv does not run', *command).splitlines()
            # torchvision brings the newest pillow, and gradio needs pillow<13.
            found = without(found, [*BUILD_TOOLS, 'pillow'])
            self.kept = {line.split('==')[0]: line.split('+')[0] for line in found}
            changeable = without([*self.pins], ['torch', *BUILD_TOOLS])
            tested = without(self.constraints, [*changeable, *self.kept])
            lines = [*tested, *self.kept.values()]
        if any(name.startswith('opencv-') for name in self.kept):
            left_out.append('opencv-python-headless')
        file = self.folder / 'constraints.txt'
        file.write_text('\n'.join(lines), encoding='utf-8')
        say('2/5 installing PyTorch and the other packages (5 GB; from seconds to minutes)')
        self.install('-c', file, *without(read_lines('requirements.txt'), left_out))
        pairs = [*zip(self.names, *STACKS.values())][1:]
        missing = [self.pins[pair[0]] for pair in pairs if not self.kept.keys() & {*pair}]
        if missing:
            say(f'3/5 installing {", ".join(missing)} (under a minute)')
            self.install('--no-build-isolation', '--no-deps', *missing)

    def install_mmcv(self) -> None:
        """mmcv with compiled operators or, without a compiler, with the stand-in. A user's own stays."""
        standard, include, site, home, archs, *key = json.loads(
            output('no torch', self.python, '-c', PROBE)
        )
        stand_in = Path(site, 'mmcv', '_ext.py')
        if self.kept.keys() & {'mmcv', 'onedl-mmcv'} and not stand_in.is_file():
            return
        device, nvcc, name = 'cpu', Path(home, 'bin', 'nvcc'), self.names[0]
        if archs and not self.ops and os.environ.get('CUDA') != '0':
            if nvcc.is_file():
                text = output('nvcc does not run', nvcc, '--version')
                device = f'cuda{re.search("release ([0-9.]+)", text)[1]}-sm{archs}'
            else:
                say('no nvcc: training on the GPU will fail (docs/install.md, GPUs)')
        folder = CACHE / 'wheels' / self.pins[name].replace('==', '-')
        folder /= re.sub(r'[^\w.+-]+', '_', '-'.join([*key, device]))
        wheel = next(folder.glob('*.whl'), None)
        reason = 'OPS=torchvision' if self.ops else ''
        if not wheel and not reason:
            compiler = f'{os.environ.get("CXX", "c++")} -std=c++{standard}'
            command = f'{compiler} -fsyntax-only -I{include} -xc++ -'
            code = '#include <vector>\n#include <Python.h>\n'
            test = subprocess.run(command, shell=True, input=code, capture_output=True, text=True)
            if test.returncode:
                reason = (test.stderr.splitlines() or [''])[0]
                reason = f'no C++{standard} compiler with Python.h: {reason}'
        if reason and device != 'cpu':
            sys.exit(f'error: {reason}')
        if reason:
            say(f"4/5 installing mmcv with torchvision's NMS and RoIAlign only: {reason}")
            # uv builds in isolation, where mmcv's setup.py finds no torch and compiles nothing.
            options = ['--no-binary', name, '--build-constraints', self.folder / 'constraints.txt']
            self.install('--reinstall', '--no-deps', *options, self.pins[name])
            shutil.copyfile(ROOT / 'mmlape/runtime/mmcv_ext.py', stand_in)
            (record,) = Path(site).glob(f'{name.replace("-", "_")}-*.dist-info/RECORD')
            record.write_text(record.read_text() + 'mmcv/_ext.py,,\n')  # uninstalled with mmcv
            return
        if not wheel:
            say(f"4/5 compiling mmcv's operators for {device}, once per machine (minutes)")
            wheel = self.compile_mmcv(folder, device)
        say('4/5 installing the compiled mmcv (seconds)')
        self.install('--reinstall', '--no-deps', wheel)

    def compile_mmcv(self, target: Path, device: str) -> Path:
        """Compile mmcv's wheel into `target`; ninja skips what an interrupted call has compiled."""
        work = CACHE / 'builds' / target.parent.name / target.name
        source, log, start = work / 'source', work / 'compile.log', time.monotonic()
        pip, options = [self.python, '-m', 'pip'], ['--no-deps', '--no-build-isolation']
        if not source.is_dir():
            shutil.rmtree(work, ignore_errors=True)
            more = ['-q', '--no-binary', ':all:', '-d', work, self.pins[self.names[0]]]
            output('no source of mmcv', *pip, 'download', *options, *more, env=self.variables)
            shutil.unpack_archive(next(work.glob('*.tar.gz')), work / 'unpacked')
            (folder,) = (work / 'unpacked').iterdir()
            setup = folder / 'setup.py'  # torch chooses the standard: since 2.14 it needs C++20
            setup.write_text(setup.read_text().replace("'-std=c++17'", ''))
            if device == 'cpu':
                join_sources(folder / 'mmcv' / 'ops' / 'csrc' / 'pytorch')
            folder.rename(source)
        gigabytes = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
        jobs = max(1, min(os.cpu_count() or 1, int(gigabytes / 2)))
        own = {'MAX_JOBS': str(jobs), **self.variables, 'MMCV_WITH_OPS': '1', 'FORCE_CUDA': '1'}
        if device == 'cpu':
            # mmcv asks for nvcc where it sees a GPU. -g0 saves a third of the time. CFLAGS would replace Python's own.
            flags = f'-g0 {own.get("CPPFLAGS", "")}'
            own |= {'FORCE_CUDA': '0', 'CUDA_VISIBLE_DEVICES': '', 'CPPFLAGS': flags}
        else:
            # Headers of PyTorch's packages come after all others: a toolkit may be little more than nvcc.
            headers = sorted(self.venv.glob('lib/python*/site-packages/nvidia/*/include'))
            given = [own['CPLUS_INCLUDE_PATH']] if 'CPLUS_INCLUDE_PATH' in own else []
            own['CPLUS_INCLUDE_PATH'] = os.pathsep.join([*given, *map(str, headers)])
        command = [*pip, 'wheel', '-v', *options, '--use-pep517', '-w', work, source]
        with log.open('w') as file:
            process = subprocess.Popen(command, env=own, stdout=file, stderr=file)
            while process.poll() is None:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    steps = re.findall(r'(?m)^ *\[(\d+/\d+)\]', log.read_text(errors='replace'))
                    minutes = (time.monotonic() - start) / 60
                    say(f'    {minutes:.1f} minutes, files compiled: {[0, *steps][-1]}')
        wheel = next(work.glob('*-cp*.whl'), None)  # one without operators is for any Python
        if process.returncode or not wheel:
            sys.exit(f"error: mmcv's operators do not compile: the compiler's output is in {log}")
        target.mkdir(parents=True, exist_ok=True)
        wheel = wheel.rename(target / wheel.name)
        shutil.rmtree(work)
        return wheel

    def install_mmlape(self) -> None:
        say('5/5 installing mmlape from this clone (seconds)')
        self.install('--no-build-isolation', '--no-deps', '-e', ROOT)
        if subprocess.call([self.python, ROOT / 'mmlape/cpu/build.py'], stdout=subprocess.DEVNULL):
            say("    on CPUs, mmlape's operators run as slower PyTorch code (reason above)")
        code = 'import mmcv._ext, mmdet.datasets, mmseg.datasets, mmpretrain.datasets'
        output('the environment does not work', self.python, '-W', 'ignore', '-c', code)
        self.save(done=self.digest())


def join_sources(folder: Path) -> None:
    """Join C++ sources into 8 units, because each parses all of torch's headers."""
    # Files that declare the same name are in different units; a macro or ``using namespace`` ends its unit.
    texts = {path: path.read_text() for path in [*folder.glob('*.cpp'), *folder.glob('cpu/*.cpp')]}
    leaks = {
        path: bool(re.search('(?m)^ *#define |^using namespace ', text))
        for path, text in texts.items()
    }
    names = {path: {*sum(re.findall(DECLARED, text), ())} - {''} for path, text in texts.items()}
    units = [[] for _ in range(8)]
    for path in sorted(texts, key=lambda path: (leaks[path], -len(texts[path]), path)):
        fits = [unit for unit in units if not any(leaks[p] or names[p] & names[path] for p in unit)]
        if not fits:
            fits = [[]]
            units += fits
        min(fits, key=lambda unit: sum(len(texts[p]) for p in unit)).append(path)
    (folder / 'joined' / 'cpu').mkdir(parents=True)
    for number, unit in enumerate(units):
        moved = [path.rename(folder / 'joined' / path.relative_to(folder)) for path in unit]
        lines = ''.join(f'#include "{path.relative_to(folder)}"\n' for path in moved)
        (folder / f'unit_{number}.cpp').write_text(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog='make env', usage=argparse.SUPPRESS)
    parser.add_argument('--venv', type=Path, required=True)
    parser.add_argument('--stack', choices=STACKS, default='onedl')
    parser.add_argument('--ops', choices=['torchvision'], default='')
    options = parser.parse_args()
    bounds = OLDEST, NEWEST[options.stack]
    if not bounds[0] <= sys.version_info[:2] <= bounds[1]:
        oldest, newest = ('.'.join(map(str, version)) for version in bounds)
        sys.exit(
            f'error: the stack {options.stack} needs Python {oldest} to {newest}, and {sys.executable} is '
            f'{sys.version.split()[0]}: install one, with your system or `uv python install {newest}` '
            f'(network), then make env PYTHON=python{newest}'
        )
    start = time.monotonic()
    try:
        setup = Setup(options.venv, options.stack, options.ops)
        if setup.state.get('done') == setup.digest() and setup.python.is_file():
            return
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / 'lock').open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # after another make env
            setup.create()
            setup.install_packages()
            setup.install_mmcv()
            setup.install_mmlape()
        say(f'{setup.venv} is ready ({time.monotonic() - start:.0f} s)')
    except OSError as error:
        sys.exit(f'error: {error}')
    except KeyboardInterrupt:
        sys.exit('\nstopped; the next call continues')


if __name__ == '__main__':
    main()
