"""mmcv with its operators, compiled once per machine and kept as a wheel.

The build folder is kept until the wheel is there, so an interrupted compilation goes on with the files that are left.
"""

import os
import platform
import re
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import units
from common import CACHE, SetupError, locked, say


@dataclass
class Cuda:
    """A compiler for GPUs. ``release`` is nvcc's, such as 13.0; ``archs`` such as 8.0;9.0."""

    home: Path
    release: str
    archs: str


def find_cuda() -> Cuda | None:
    """The CUDA compiler and what it compiles for, unless ``CUDA=0`` forbids it or something is missing.

    ``TORCH_CUDA_ARCH_LIST`` stands for GPUs: a cluster's login node has none and compiles for the others.
    """
    if os.environ.get('CUDA') == '0':
        return None
    archs = os.environ.get('TORCH_CUDA_ARCH_LIST') or ';'.join(capabilities())
    if not archs:
        return None
    homes = [os.environ.get('CUDA_HOME'), '/usr/local/cuda']
    candidates = [Path(home, 'bin', 'nvcc') for home in homes if home]
    on_path = shutil.which('nvcc')
    candidates.insert(1 if homes[0] else 0, Path(on_path or '/nonexistent'))
    nvcc = next((path.resolve() for path in candidates if path.is_file()), None)
    if nvcc is None:
        say(
            f'there is no nvcc to compile for GPUs ({archs}): mmcv gets operators for the CPU only,'
        )
        say('and training on a GPU will fail; install the CUDA toolkit and call make env again')
        return None
    text = subprocess.run([str(nvcc), '--version'], capture_output=True, text=True).stdout
    release = re.search(r'release (\d+\.\d+)', text)
    return Cuda(nvcc.parent.parent, release.group(1) if release else 'unknown', archs)


def capabilities() -> list[str]:
    """Compute capabilities of the machine's GPUs, such as 9.0."""
    if not shutil.which('nvidia-smi'):
        return []
    query = ['nvidia-smi', '--query-gpu=compute_cap', '--format=csv,noheader']
    result = subprocess.run(query, capture_output=True, text=True)
    found = re.findall(r'^\d+\.\d+$', result.stdout, re.MULTILINE)
    return [] if result.returncode else sorted(set(found))


def wheel_key(about: dict, torch: str, cuda: Cuda | None) -> str:
    """Everything that a compiled mmcv depends on, as a folder name."""
    libc = ''.join(platform.libc_ver())
    device = f'cuda{cuda.release}-sm{cuda.archs}' if cuda else 'cpu'
    key = '-'.join([about['tag'], about['platform'], libc, f'torch{torch}', device])
    return re.sub(r'[^\w.+-]+', '_', key)


def has_operators(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return any(re.match(r'mmcv/_ext\b.*\.(so|pyd)$', name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


# -- compiling ------------------------------------------------------------------------------------


def kept_wheel(distribution: str, version: str, key: str) -> Path | None:
    """The wheel that an earlier set-up on this machine compiled, if there is one."""
    folder = CACHE / 'wheels' / f'{distribution}-{version}' / key
    return next((path for path in sorted(folder.glob('*.whl')) if has_operators(path)), None)


def get_wheel(
    python: Path, environment: dict, distribution: str, version: str, key: str, cuda: Cuda | None
) -> Path:
    """The wheel from the cache, or compiled now and put there.

    Args:
        python: interpreter of an environment that has torch, setuptools, wheel, ninja and psutil.
        environment: variables for the compilation, with that environment first in ``PATH``.
        distribution: name of mmcv on the package index.
        version: its exact version.
        key: from :func:`wheel_key`.
        cuda: compile for the GPU with this compiler, or for the CPU only.

    Raises:
        SetupError: The source cannot be fetched, or it does not compile.
    """
    name = f'{distribution}-{version}'
    work = CACHE / 'builds' / name / key
    with locked(CACHE / 'builds' / f'{name}-{key}.lock', f'compiling {name}'):
        wheel = kept_wheel(distribution, version, key)
        if wheel is None:
            fetch = partial(fetch_source, python, environment, distribution, version, work)
            build = partial(compile_wheel, python, build_environment(environment, python, cuda))
            wheel = joined_or_not(fetch, build, joined=cuda is None)
            target = CACHE / 'wheels' / name / key / wheel.name
            target.parent.mkdir(parents=True, exist_ok=True)
            wheel.replace(target)
            wheel = target
            shutil.rmtree(work, ignore_errors=True)
    return wheel


def joined_or_not(
    fetch: Callable[[bool], Path], build: Callable[[Path], Path], joined: bool
) -> Path:
    """The wheel from sources that are joined, where `joined` allows it; where that fails, from mmcv's own files."""
    source = fetch(joined)
    try:
        return build(source)
    except SetupError:
        if not units.are_joined(source):
            raise
        say("mmcv's sources do not compile joined; one by one, which takes four times as long")
        shutil.rmtree(source)
        return build(fetch(False))


def fetch_source(
    python: Path, environment: dict, distribution: str, version: str, work: Path, joined: bool
) -> Path:
    """The unpacked source, downloaded if it is not there from an interrupted call; `joined` to compile in minutes."""
    source = work / 'source'
    if source.is_dir():
        return source
    unpacked = work / 'unpacked'
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir(parents=True)
    command = [str(python), '-m', 'pip', 'download', '-q', '--no-deps', '--no-build-isolation']
    command += ['--no-binary', ':all:', '-d', str(work), f'{distribution}=={version}']
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    archive = next(work.glob('*.tar.gz'), None)
    if result.returncode or archive is None:
        lines = [line for line in result.stderr.splitlines() if 'ERROR' in line] or ['no message']
        raise SetupError(f'the source of {distribution} {version} cannot be fetched: {lines[-1]}')
    with tarfile.open(archive) as file:
        file.extractall(unpacked)
    folder = next(path for path in unpacked.iterdir() if path.is_dir())
    if joined:
        units.join_sources(folder)
    folder.replace(source)
    return source


def build_environment(environment: dict, python: Path, cuda: Cuda | None) -> dict:
    """Variables for mmcv's setup.py and for torch's compiler driver."""
    gigabytes = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
    jobs = max(1, min(os.cpu_count() or 1, int(gigabytes / 2)))
    built = {'MAX_JOBS': str(jobs), **environment, 'MMCV_WITH_OPS': '1', 'FORCE_CUDA': '0'}
    if cuda is None:
        # Without this, mmcv's setup.py sees the GPU and asks for an nvcc that is not there or not wanted.
        # Python's own flags often ask for debugging information, which costs half as much time again. What is in
        # CPPFLAGS comes after them; CFLAGS would replace them, optimizations included.
        flags = f'-g0 {built.get("CPPFLAGS", "")}'.strip()
        return {**built, 'CUDA_VISIBLE_DEVICES': '', 'CPPFLAGS': flags}
    code = 'import torch; print(torch.version.cuda or "")'
    torch = subprocess.run([str(python), '-c', code], capture_output=True, text=True).stdout.strip()
    if torch.split('.')[0] != cuda.release.split('.')[0]:
        raise SetupError(
            f'torch is built for CUDA {torch or "(none)"}, which nvcc {cuda.release} cannot compile for: '
            f'install nvcc {torch.split(".")[0]}.x, or say CUDA=0 for operators on the CPU only'
        )
    home = {'CUDA_HOME': str(cuda.home), 'TORCH_CUDA_ARCH_LIST': cuda.archs}
    return {**built, **home, 'FORCE_CUDA': '1'}


def compile_wheel(python: Path, environment: dict, source: Path) -> Path:
    """``pip wheel`` in the source folder, so that ninja finds the object files of an earlier attempt."""
    out = source.parent / 'out'
    log = source.parent / 'compile.log'
    command = [str(python), '-m', 'pip', 'wheel', '-v', '--no-build-isolation', '--no-deps']
    command += ['--use-pep517']  # the other way removes the object files when it is interrupted
    start = time.monotonic()
    process = subprocess.Popen(
        [*command, '-w', str(out), str(source)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
    )
    try:
        with log.open('w') as file:
            follow(process.stdout, file, start)
        code = process.wait()
    finally:
        process.terminate()
    wheel = next((path for path in sorted(out.glob('*.whl')) if has_operators(path)), None)
    if code or wheel is None:
        reason = 'it failed' if code else 'the wheel has no compiled operators'
        raise SetupError(f"compiling mmcv's operators: {reason}; the compiler's output is in {log}")
    say(f'      compiled in {(time.monotonic() - start) / 60:.1f} minutes')
    return wheel


def follow(lines, log, start: float) -> None:
    """Copy the compiler's output to `log`, and say every half minute how far it is."""
    said = start
    for line in lines:
        log.write(line)
        step = re.match(r'\s*\[(\d+)/(\d+)\]', line)
        now = time.monotonic()
        if step and now - said >= 30:
            said = now
            say(f'      {step[1]} of {step[2]} files, {(now - start) / 60:.1f} minutes gone')
