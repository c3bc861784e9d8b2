"""Sets up the environment of a clone: ``make env``, and every target that needs one, call this.

Standard library only. Each step leaves a stamp, so a finished environment costs nothing and an interrupted one goes on
where it stopped. What is installed in an environment that the user brought along is completed, never replaced.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import checks
import mmcv_wheel
import operators
import stand_in
from common import (
    ABOUT_PYTHON,
    CACHE,
    INSTALLED,
    ROOT,
    SetupError,
    ask,
    canonical,
    digest,
    locked,
    name_of,
    read_requirements,
    say,
    write_whole,
)

# What each stack calls the packages; both have the same import names.
STACKS = {
    'onedl': {
        'mmengine': 'onedl-mmengine',
        'mmcv': 'onedl-mmcv',
        'mmdet': 'onedl-mmdetection',
        'mmseg': 'onedl-mmsegmentation',
        'mmpretrain': 'onedl-mmpretrain',
    },
    'openmmlab': {
        'mmengine': 'mmengine',
        'mmcv': 'mmcv',
        'mmdet': 'mmdet',
        'mmseg': 'mmsegmentation',
        'mmpretrain': 'mmpretrain',
    },
}
CONSTRAINTS = {'onedl': 'constraints.txt', 'openmmlab': 'constraints-openmmlab.txt'}
OPENCV = {
    'opencv-python',
    'opencv-python-headless',
    'opencv-contrib-python',
    'opencv-contrib-python-headless',
}
# Installed without what they ask for, which includes the OpenCV that needs libGL.
ALONE = {'onedl': ('imaug', 'imagecorruptions-imaug'), 'openmmlab': ('imagecorruptions-imaug',)}
# Not a part of anybody's stack, so they may be upgraded in an environment that the user brought along.
BUILD_TOOLS = {'pip', 'setuptools', 'wheel', 'ninja', 'uv', 'psutil'}


@dataclass
class Setup:
    """One environment being set up. ``explicit_python`` is the interpreter that the user asked for, if any.

    ``without_operators`` says why mmcv gets the stand-in; it is empty where mmcv gets its own operators.
    """

    venv: Path
    stack: str
    explicit_python: str | None = None
    ours: bool = True
    stamps: dict = field(default_factory=dict)
    without_operators: str = ''

    def __post_init__(self):
        self.venv = Path(os.path.abspath(self.venv))
        self.python = self.venv / 'bin' / 'python'
        self.state = self.venv / '.mmlape' / 'state.json'
        self.names = STACKS[self.stack]
        pins = read_requirements(ROOT / CONSTRAINTS[self.stack])
        exact = dict(pin.split('==') for pin in pins if ';' not in pin)
        self.pins = {canonical(name): version for name, version in exact.items()}

    @cached_property
    def cuda(self) -> mmcv_wheel.Cuda | None:
        """Looked for once: it says so where a GPU has no compiler."""
        return mmcv_wheel.find_cuda()

    def load(self) -> None:
        if self.state.is_file():
            saved = json.loads(self.state.read_text(encoding='utf-8'))
            self.ours, self.stamps = saved['ours'], saved['stamps']
            if saved['stack'] != self.stack:
                raise SetupError(
                    f'{self.venv} holds the stack {saved["stack"]}, not {self.stack}: '
                    'give another folder (VENV=path)'
                )
        else:
            self.ours = not self.python.is_file()

    def save(self) -> None:
        content = {'ours': self.ours, 'stack': self.stack, 'stamps': self.stamps}
        write_whole(self.state, json.dumps(content, indent=1))

    def wanted(self) -> dict:
        """The stamp that each step leaves when it is done."""
        files = [
            ROOT / 'requirements.txt',
            ROOT / CONSTRAINTS[self.stack],
            ROOT / 'constraints.txt',
        ]
        about_us = [ROOT / 'setup.py', ROOT / 'pyproject.toml', ROOT / 'mmlape' / 'version.py']
        about_us += operators.SOURCES
        toolboxes = [f'{name}=={self.pins[name]}' for name in self.names.values()]
        if self.without_operators:
            mmcv = stand_in.stamp(toolboxes)
        else:
            cuda = vars(self.cuda) if self.cuda else None
            mmcv = digest(toolboxes, self.pins['torch'], cuda)
        return {
            'venv': 'created',
            'packages': digest(*[file.read_text(encoding='utf-8') for file in files]),
            'mmcv': mmcv,
            'toolboxes': digest(toolboxes, [self.pins[name] for name in ALONE[self.stack]]),
            'mmlape': digest(ROOT, *[file.read_text(encoding='utf-8') for file in about_us]),
        }

    def environment(self) -> dict:
        path = os.pathsep.join([str(self.python.parent), os.environ.get('PATH', '')])
        # uv trusts only its own certificates unless told otherwise, which fails behind a company's proxy.
        own = {'UV_SYSTEM_CERTS': '1'}
        if os.environ.get('PYTHONDONTWRITEBYTECODE'):
            # Else every process compiles anew what it imports: ten seconds before it begins.
            own['UV_COMPILE_BYTECODE'] = '1'
        return {**own, **os.environ, 'PATH': path, 'VIRTUAL_ENV': str(self.venv)}

    def run(self, *command: object, quiet: bool = False) -> bool:
        """Whether the command succeeds; ``quiet`` leaves only its errors on the screen."""
        out = subprocess.DEVNULL if quiet else None
        parts = [str(part) for part in command]
        return not subprocess.call(parts, env=self.environment(), stdout=out)

    def install(self, what: str, *arguments: object) -> None:
        """``pip install``, by uv where it works; pip reads configuration that uv does not know."""
        uv = self.python.parent / 'uv'
        if uv.is_file() and self.run(
            uv, 'pip', 'install', '-q', '--python', self.python, *arguments
        ):
            return
        if uv.is_file():
            say('uv did not manage it; trying pip')
        if not self.run(self.python, '-m', 'pip', 'install', '-q', *arguments):
            raise SetupError(
                f'{what} could not be installed (reason above); make env continues here'
            )

    def installed(self) -> dict:
        found = ask(self.python, INSTALLED)
        return {canonical(name): version for name, version in found.items() if name}


def create_venv(setup: Setup) -> None:
    """The virtual environment with uv in it; removed again if the package index cannot be reached."""
    if setup.ours:
        say(f'1/5 creating {setup.venv} with Python {platform.python_version()} (seconds)')
        setup.save()  # marks an environment that is only half there as ours
        command = [sys.executable, '-m', 'venv', str(setup.venv)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            shutil.rmtree(setup.venv, ignore_errors=True)
            lines = (result.stdout + result.stderr).strip().splitlines() or ['no message']
            raise SetupError(
                f'{sys.executable} cannot create an environment: {lines[-1].strip()} '
                '(Debian, Ubuntu: install python3-venv)'
            )
    if (setup.python.parent / 'uv').is_file():
        return
    pip = [setup.python, '-m', 'pip', 'install', '-q', '--retries', '1', '--timeout', '20']
    command = [str(part) for part in [*pip, f'uv=={setup.pins["uv"]}']]
    result = subprocess.run(command, capture_output=True, text=True, env=setup.environment())
    if result.returncode:
        if setup.ours:
            shutil.rmtree(setup.venv, ignore_errors=True)
        errors = [line for line in result.stderr.splitlines() if 'ERROR' in line]
        reason = (errors or result.stderr.strip().splitlines() or ['no message'])[-1]
        raise SetupError(f'no network, or pip cannot reach its package index: {reason}')


def constraints_for(setup: Setup, installed: dict, tested: bool = True) -> Path:
    """The tested versions; in somebody else's environment, what is installed there comes first, or is all."""
    lines = read_requirements(ROOT / CONSTRAINTS[setup.stack]) if tested else []
    if not setup.ours:
        kept = {name: version for name, version in installed.items() if name not in BUILD_TOOLS}
        lines = [line for line in lines if name_of(line) not in kept]
        lines += [f'{name}=={version.split("+")[0]}' for name, version in kept.items()]
    path = setup.state.parent / 'constraints.txt'
    write_whole(path, '\n'.join(lines) + '\n')
    return path


def install_packages(setup: Setup) -> None:
    """Everything but the OpenMMLab packages."""
    installed = setup.installed()
    left_out = {*STACKS['onedl'].values(), *ALONE['onedl']}  # installed by the next steps
    if OPENCV & installed.keys():
        left_out |= OPENCV
    required = read_requirements(ROOT / 'requirements.txt')
    lines = [line for line in required if name_of(line) not in left_out]
    say('2/5 installing PyTorch and the other packages (5 GB; from seconds to minutes)')
    wanted = setup.state.parent / 'requirements.txt'
    write_whole(wanted, '\n'.join(lines) + '\n')
    try:
        setup.install('the packages', '-r', wanted, '-c', constraints_for(setup, installed))
    except SetupError:
        if setup.ours:
            raise
        say(f'the tested versions do not all fit what is in {setup.venv}; taking others')
        kept = constraints_for(setup, installed, tested=False)
        setup.install('the packages', '-r', wanted, '-c', kept)


def install_mmcv(setup: Setup) -> None:
    """mmcv with compiled operators, or with the stand-in; a user's own stays as it is."""
    installed = setup.installed()
    if has_own_mmcv(setup, installed):
        if not setup.run(setup.python, '-c', 'import mmcv._ext'):
            raise SetupError(
                f'the mmcv in {setup.venv} has no compiled operators (reason above): uninstall it, '
                'then call make env again, which compiles one'
            )
        return
    name, version = setup.names['mmcv'], setup.pins[setup.names['mmcv']]
    if setup.without_operators:
        say("4/5 installing mmcv with torchvision's NMS and RoIAlign (seconds)")
        work = setup.state.parent / 'mmcv'
        wheel = stand_in.make_wheel(setup.python, setup.environment(), name, version, work)
        install_wheel(setup, wheel, 'call make env again')
        shutil.rmtree(work)
        return
    cuda = setup.cuda
    key = mmcv_wheel.wheel_key(ask(setup.python, ABOUT_PYTHON), installed['torch'], cuda)
    wheel = mmcv_wheel.kept_wheel(name, version, key)
    if wheel is None:
        device = f'for CUDA {cuda.release}, {cuda.archs}' if cuda else 'for the CPU'
        time_taken = 'this takes long' if cuda else '1 to 2 minutes on 2 idle cores'
        say(f"4/5 compiling mmcv's operators {device}, once per machine ({time_taken})")
        wheel = mmcv_wheel.get_wheel(setup.python, setup.environment(), name, version, key, cuda)
    else:
        say('4/5 installing mmcv, compiled earlier on this machine')
    install_wheel(setup, wheel, 'if you remove it, it is compiled anew')


def install_wheel(setup: Setup, wheel: Path, advice: str) -> None:
    """mmcv from `wheel`, in place of the one that is there; `advice` is for one that does not load."""
    setup.install('mmcv', '--no-deps', '--force-reinstall', wheel)
    if not setup.run(setup.python, '-c', 'import mmcv._ext'):
        raise SetupError(f'{wheel} does not load (reason above); {advice}')


def has_own_mmcv(setup: Setup, installed: dict) -> bool:
    """Whether there is an mmcv that the user brought along; one with the stand-in is from an earlier set-up."""
    ours = setup.ours or stand_in.is_stamp(setup.stamps.get('mmcv'))
    return not ours and own_version(setup, installed, 'mmcv') is not None


def own_version(setup: Setup, installed: dict, module: str) -> str | None:
    """The version of `module` that is installed, under whichever distribution name."""
    names = (names[module] for names in STACKS.values())
    return next((installed[name] for name in names if name in installed), None)


def install_toolboxes(setup: Setup) -> None:
    installed = setup.installed()
    wanted = [
        f'{name}=={setup.pins[name]}'
        for module, name in setup.names.items()
        if module != 'mmcv' and (setup.ours or not own_version(setup, installed, module))
    ]
    alone = [name for name in ALONE[setup.stack] if name not in installed]
    wanted += [f'{name}=={setup.pins[name]}' for name in alone]
    if wanted:
        say(f'3/5 installing {", ".join(wanted)} (under a minute)')
        setup.install('the OpenMMLab packages', '--no-build-isolation', '--no-deps', *wanted)


def install_mmlape(setup: Setup) -> None:
    say('5/5 installing mmlape from this clone (seconds)')
    setup.install('mmlape', '--no-build-isolation', '--no-deps', '-e', ROOT)
    operators.compile_operators(setup)
    code = 'import mmdet.datasets, mmseg.datasets, mmpretrain.datasets'
    # Quiet: without OneDL's own client, they print that its data sets are left out.
    if not setup.run(setup.python, '-W', 'ignore', '-c', code, quiet=True):
        raise SetupError(f'one of {code.removeprefix("import ")} cannot be imported (reason above)')


STEPS = {
    'venv': create_venv,
    'packages': install_packages,
    'toolboxes': install_toolboxes,
    'mmcv': install_mmcv,
    'mmlape': install_mmlape,
}


def needs_compiler(setup: Setup, about: dict) -> bool:
    """Whether mmcv will have to be compiled, as far as that is known before anything is installed."""
    installed = setup.installed() if setup.python.is_file() else {}
    if has_own_mmcv(setup, installed):
        return False
    torch = setup.pins['torch'] if setup.ours else installed.get('torch', setup.pins['torch'])
    key = mmcv_wheel.wheel_key(about, torch, setup.cuda)
    name = setup.names['mmcv']
    return mmcv_wheel.kept_wheel(name, setup.pins[name], key) is None


def is_ready(setup: Setup) -> bool:
    return setup.python.is_file() and setup.stamps == setup.wanted()


def choose_operators(setup: Setup, about: dict) -> None:
    """mmcv's own, or the stand-in: where it is asked for, or mmcv would have to be compiled and cannot be.

    Raises:
        SetupError: It cannot be compiled for the GPU that is there: the stand-in would not do.
    """
    if stand_in.is_asked_for():
        installed = setup.installed() if setup.python.is_file() else {}
        if not has_own_mmcv(setup, installed):
            setup.without_operators = 'OPS=torchvision'
    elif setup.stamps.get('mmcv') != setup.wanted()['mmcv'] and needs_compiler(setup, about):
        try:
            checks.check_compiler(about)
        except SetupError as error:
            if setup.cuda:
                raise
            setup.without_operators = str(error)


def set_up(setup: Setup) -> None:
    """Do what is not done yet."""
    checks.check_venv(setup.venv)
    setup.load()
    if not stand_in.is_asked_for() and is_ready(setup):
        return
    about = checks.check_python(setup.venv, setup.explicit_python)
    if not setup.ours:
        checks.check_torch(setup.venv, setup.installed())
    choose_operators(setup, about)
    if is_ready(setup):
        return
    checks.check_space(setup.venv)
    wanted = setup.wanted()
    if setup.without_operators and setup.stamps.get('mmcv') != wanted['mmcv']:
        say(
            "mmcv gets torchvision's NMS and RoIAlign in place of its own operators, enough for the demo on a CPU: "
            + setup.without_operators
        )
    start = time.monotonic()
    for name, step in STEPS.items():
        if setup.stamps.get(name) != wanted[name]:
            step(setup)
            setup.stamps[name] = wanted[name]
            setup.save()
    say(f'{setup.venv} is ready ({time.monotonic() - start:.0f} s)')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--venv', type=Path, required=True, help='folder of the environment')
    parser.add_argument('--stack', default='onedl', help=f'one of: {", ".join(STACKS)}')
    parser.add_argument('--python', help='the interpreter the user asked for, if any')
    arguments = parser.parse_args()
    try:
        if arguments.stack not in STACKS:
            raise SetupError(f'STACK={arguments.stack} is unknown; choose {" or ".join(STACKS)}')
        setup = Setup(arguments.venv, arguments.stack, arguments.python)
        checks.check_venv(setup.venv)
        lock = CACHE / 'locks' / digest(setup.venv)
        with locked(lock, f'setting up {setup.venv}'):
            set_up(setup)
    except SetupError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nstopped; the next call continues from here', file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
