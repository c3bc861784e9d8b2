"""GPUs, shared memory, threads, disk, limits."""

from __future__ import annotations

import locale
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from .check import ERROR, OK, WARNING, Check, ask

GIB = 1024**3
SHARED = Path('/dev/shm')
# Of the image of a sample on its way from a worker, where the pipeline names none.
USUAL_SIZE = (1333, 800)
LEAST_DISK_GIB, LEAST_FILES = 5.0, 1024
_TORCH = """
import torch
answer.update(version=str(torch.__version__), cuda=torch.version.cuda, gpus=[])
def fault_of(try_it):
    try:
        try_it()
    except Exception as error:
        return (str(error).strip().splitlines() or [repr(error)])[0]
def try_numpy():
    import numpy
    torch.from_numpy(numpy.zeros(1)).numpy()
def try_torchvision():
    from torchvision.ops import nms
    nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
answer['numpy'], answer['torchvision'] = fault_of(try_numpy), fault_of(try_torchvision)
if torch.cuda.is_available():
    built = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            fault = fault_of(lambda: (torch.ones(2, 2, device='cuda') @ torch.ones(2, 2, device='cuda')).tolist())
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        answer['gpus'].append(dict(
            name=facts.name, memory=facts.total_memory, capability=[facts.major, facts.minor], bf16=bf16,
            fault=fault, built=built))
"""


class Machine:
    """What is asked of the machine once, by several checks."""

    @cached_property
    def _asked(self) -> tuple[dict[str, Any] | None, str]:
        return ask(_TORCH)

    @property
    def torch(self) -> dict[str, Any] | None:
        """Facts about torch and its GPUs, or None if it cannot be imported."""
        return self._asked[0]

    @property
    def why_no_torch(self) -> str:
        """Why :attr:`torch` is None."""
        return self._asked[1]

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """Those that torch can use."""
        return (self.torch or {}).get('gpus', [])

    @property
    def processes(self) -> int:
        """How many processes of a training share this machine: torchrun's number, else one per GPU, else 1."""
        return int(os.environ.get('LOCAL_WORLD_SIZE') or max(1, len(self.gpus)))

    @cached_property
    def cores(self) -> int:
        """That this process may use: by its mask, and by the container's quota."""
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, 'sched_getaffinity')
            else os.cpu_count() or 1
        )
        try:
            quota, period = Path('/sys/fs/cgroup/cpu.max').read_text().split()
            return min(cores, max(1, round(int(quota) / int(period))))
        except (OSError, ValueError):  # another system, or no quota ("max")
            return cores


def machine_checks(
    machine: Machine, cfg: Any | None, work_dir: str | None
) -> list[Callable[[], Any]]:
    """In the order in which they are shown; ``cfg`` may be None."""
    return [
        partial(_gpus, machine),
        partial(_shared_memory, machine, cfg),
        partial(_threads, machine, cfg),
        partial(_disk, cfg, work_dir),
        _open_files,
        _encoding,
    ]


def _gpus(machine: Machine) -> list[Check]:
    listed, driver = _nvidia_smi()
    if not machine.gpus:
        if not listed:
            return [Check('GPUs', OK, 'none: training runs on the CPU, for the demo at most')]
        hidden = os.environ.get('CUDA_VISIBLE_DEVICES')
        if hidden is not None and not hidden.strip(' -1'):
            advice = 'unset CUDA_VISIBLE_DEVICES'
            return [
                Check(
                    'GPUs',
                    WARNING,
                    f'{listed} in the machine, hidden by CUDA_VISIBLE_DEVICES={hidden!r}',
                    advice,
                )
            ]
        built = (machine.torch or {}).get('cuda')
        if built is None:
            return [
                Check(
                    'GPUs',
                    ERROR,
                    f'{listed} in the machine, but this torch is built for CPUs',
                    'install a torch for CUDA',
                )
            ]
        found = f'{listed} in the machine, but torch (CUDA {built}) cannot use them; the driver is {driver}'
        return [
            Check(
                'GPUs',
                ERROR,
                found,
                'the driver is too old for this CUDA: a newer one, or a torch for an older CUDA',
            )
        ]
    checks = []
    for index, gpu in enumerate(machine.gpus):
        major, minor = gpu['capability']
        found = (
            f'{gpu["name"]}, {gpu["memory"] / GIB:.0f} GiB, compute capability {major}.{minor}, '
            f'{"bf16" if gpu["bf16"] else "no bf16 (use --amp-dtype fp16)"}{f", driver {driver}" if driver else ""}'
        )
        if gpu['fault']:
            advice = f'this torch is compiled for {", ".join(gpu["built"])}: install one for this GPU and driver'
            checks.append(
                Check(
                    f'GPU {index}',
                    ERROR,
                    f'{found}; a product of matrices fails: {gpu["fault"]}',
                    advice,
                )
            )
        else:
            checks.append(Check(f'GPU {index}', OK, found))
    return checks


def _nvidia_smi() -> tuple[int, str]:
    """How many GPUs the driver sees, and its version; ``(0, '')`` without one."""
    program = shutil.which('nvidia-smi')
    if program is None:
        return 0, ''
    query = [program, '--query-gpu=driver_version', '--format=csv,noheader']
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0, ''
    lines = done.stdout.split() if done.returncode == 0 else []
    return len(lines), lines[0] if lines else ''


def _loader(cfg: Any | None) -> dict:
    return dict((cfg.get('train_dataloader') if cfg is not None else None) or {})


def _shared_memory(machine: Machine, cfg: Any | None) -> list[Check]:
    if not SHARED.is_dir():
        return []
    name, free = str(SHARED), shutil.disk_usage(SHARED).free / GIB
    loader = _loader(cfg)
    workers = loader.get('num_workers', 0 if cfg is not None else 2) * machine.processes
    waiting = workers * (loader.get('prefetch_factor') or 2) * (loader.get('batch_size') or 2)
    # Three channels of float32 at most, and half as much for masks or label maps.
    needed = (
        waiting * 1.5 * 12 * (_pixels(loader.get('dataset')) or USUAL_SIZE[0] * USUAL_SIZE[1]) / GIB
    )
    found = f'{_gib(free)} free; {workers} data workers hold up to {_gib(needed)}'
    if free >= needed:
        return [Check(name, OK, found)]
    advice = f'start the container with --shm-size={max(1, round(2 * needed))}g, or train_dataloader.num_workers=0'
    return [Check(name, WARNING, found, advice)]


def _pixels(value: Any) -> float:
    """Pixels of a training image: of the last step of a pipeline that sets a size, the largest of those it names."""
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_pixels, reversed(value))), 0.0)
    if not isinstance(value, dict):
        return 0.0
    own = max(_area(value.get(key)) for key in ('crop_size', 'scale', 'scales', 'img_scale'))
    inside = (_pixels(value.get(key)) for key in ('pipeline', 'transforms', 'dataset', 'datasets'))
    return own or next(filter(None, inside), 0.0)


def _area(size: Any) -> float:
    if isinstance(size, int):
        return float(size * size)
    if isinstance(size, (list, tuple)) and size:
        if all(isinstance(side, int) for side in size) and len(size) == 2:
            return float(size[0] * size[1])
        return max(map(_area, size))
    return 0.0


def _threads(machine: Machine, cfg: Any | None) -> Check:
    text, processes = os.environ.get('OMP_NUM_THREADS', '').strip(), machine.processes
    workers = _loader(cfg).get('num_workers', 0) * processes
    # torchrun sets 1 where nothing is set and there are several processes.
    each = int(text) if text.isdigit() and int(text) else 1 if processes > 1 else machine.cores
    found = (
        f'{machine.cores} cores; {processes} x {each} threads (OMP_NUM_THREADS={text or "not set"})'
    )
    found += f', {workers} data workers' if cfg is not None else ''
    if each * processes > machine.cores:
        return Check(
            'threads',
            WARNING,
            found,
            f'export OMP_NUM_THREADS={max(1, machine.cores // processes)}',
        )
    if workers > machine.cores:
        best = max(1, machine.cores // processes)
        advice = f'more workers than cores wait for each other: train_dataloader.num_workers={best}'
        return Check('threads', WARNING, found, advice)
    return Check('threads', OK, found)


def _disk(cfg: Any | None, work_dir: str | None) -> Check:
    folder = Path(
        work_dir or (cfg.get('work_dir') if cfg is not None else None) or 'work_dirs'
    ).resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    found = f'{_gib(free)} free in {folder}'
    if not os.access(folder, os.W_OK):
        return Check('disk', ERROR, f'{folder} cannot be written to', 'another folder: --work-dir')
    if free < LEAST_DISK_GIB:
        advice = 'checkpoints of a detector take 0.3 to 1.5 GiB each: another disk with --work-dir'
        return Check('disk', WARNING, found, advice)
    return Check('disk', OK, found)


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        number = min(hard, 4096) if hard > 0 else 4096
        advice = f'ulimit -n {number}: data workers keep files open ("Too many open files")'
        return Check('open files', WARNING, f'at most {soft}', advice)
    return Check('open files', OK, f'at most {soft}' if soft > 0 else 'no limit')


def _encoding() -> Check:
    found = {sys.getfilesystemencoding(), locale.getpreferredencoding(False)}
    if all(name.lower().replace('-', '') == 'utf8' for name in found):
        return Check('encoding', OK, 'UTF-8')
    advice = (
        'names of files and classes beyond ASCII will fail: export LC_ALL=C.UTF-8, or PYTHONUTF8=1'
    )
    return Check('encoding', WARNING, ', '.join(sorted(found)), advice)


def _gib(size: float) -> str:
    return f'{size:.1f} GiB' if size >= 1 else f'{size * 1024:.0f} MiB'
