"""A run: its processes, started by torchrun, SLURM or MPI, the checkpoint that it resumes from, and its runner."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, init_dist, is_distributed
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing

from mmlape.checks import type_name
from mmlape.config_text import as_plain

from .check_data import main_process_says
from .check_names import check_custom_keys
from .devices import CpuHook
from .last_checkpoint import (
    complete_checkpoint,
    existing_checkpoint,
    last_complete_checkpoint,
    pointer_of,
)

# Set by SLURM when it restarts a job, and by torchrun when it restarts the processes.
RESTARTS = ('SLURM_RESTART_COUNT', 'TORCHELASTIC_RESTART_COUNT')
# Default hooks of MMEngine: None means its default, for others it would be an error.
_OFF = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
# What MMEngine logs of every run in hundreds of lines, by the beginnings; the first is that of the environment.
_LONG = (
    '\n------',
    'Config:\n',
    'paramwise_options -- ',
    'Hooks will be executed in',
    'Distributed training is not',
)

# What a launcher sets in the environment, and the program of that launcher.
_STARTED = dict(
    pytorch=('RANK', 'torchrun'),
    slurm=('SLURM_STEP_NODELIST', 'srun'),
    mpi=('OMPI_COMM_WORLD_LOCAL_RANK', 'mpirun'),
)


@contextmanager
def joined(cfg: Config) -> Iterator[None]:
    """Initialize the process group of ``cfg.launcher``, before the runner does, and destroy it at the end.

    Without an accelerator it is gloo's, on CPUs, which upstream's runner does not support.

    Raises:
        ValueError: If the launcher has not started this process, or it is ``mpi`` without an accelerator.
    """
    if cfg.launcher != 'none' and not is_distributed():
        name, program = _STARTED[cfg.launcher]
        if name not in os.environ:
            raise ValueError(
                f'--launcher {cfg.launcher} is for processes that {program} has started'
            )
        environment = cfg.get('env_cfg') or {}
        options = dict(environment.get('dist_cfg') or {})
        if get_device() == 'cpu':
            _join_on_cpu(cfg, options)
        else:
            # First, as in the runner: init_dist sets how data workers start, unless that is set.
            set_multi_processing(**(environment.get('mp_cfg') or {}), distributed=True)
            init_dist(cfg.launcher, **options)
    yield
    # Not in a `finally`: after an error the others may be gone, and this would wait for them.
    if is_distributed():
        # The wrapped model, in a reference cycle, holds the group; one of its threads that still runs while Python
        # ends sometimes aborts the process.
        gc.collect()
        torch.distributed.destroy_process_group()


def optimize_on_cpu(runner: Runner) -> None:
    """Without an accelerator, add ``mmlape.CpuHook`` to the runner."""
    known = any(isinstance(hook, CpuHook) for hook in runner.hooks)
    if get_device() == 'cpu' and not known:
        runner.register_hook(CpuHook())


def all_see(condition: bool, what: str) -> None:
    """Raise ValueError in all processes, with ``what``, if ``condition`` is false in one."""
    answers = all_gather_object(bool(condition))
    missing = [str(rank) for rank, answer in enumerate(answers) if not answer]
    if missing:
        raise ValueError(f'process {", ".join(missing)} of {len(answers)}: {what}')


def lock_work_dir(work_dir: str) -> list[str]:
    """Keep other trainings out of ``work_dir`` until this process ends, however it ends.

    The lock is the operating system's, so a killed process leaves none behind; data workers do not inherit it, unlike
    filelock's.

    Returns:
        A note, where the file system has no locks.

    Raises:
        ValueError: In all processes, if another training uses the folder.
    """
    return main_process_says(lambda: _lock(Path(work_dir, '.lock')))


def _lock(path: Path) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = os.pread(file, 200, 0).decode(errors='replace').strip() or 'unknown'
        os.close(file)
        raise ValueError(
            f'another training ({owner}) uses {path.parent}: wait for its end, or take another --work-dir'
        ) from None
    except OSError as error:
        os.close(file)
        return [
            f'{path.parent} is not protected from a second training: its file system has no locks ({error.strerror})'
        ]
    os.ftruncate(file, 0)
    os.pwrite(file, f'process {os.getpid()} on {socket.gethostname()}\n'.encode(), 0)
    return []


def _join_on_cpu(cfg: Config, options: dict) -> None:
    if cfg.launcher == 'slurm':
        _take_ranks_of_slurm()
    elif cfg.launcher != 'pytorch':
        raise ValueError(
            f'--launcher {cfg.launcher} needs GPUs, and none is visible; torchrun and slurm do not'
        )
    timeout = timedelta(seconds=options.get('timeout') or 1800)
    torch.distributed.init_process_group('gloo', timeout=timeout)
    # Upstream's default wrapper names a GPU.
    wrapper = dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    if 'strategy' not in cfg:
        cfg.model_wrapper_cfg = dict(
            wrapper | (cfg.get('model_wrapper_cfg') or {}), device_ids=None
        )


def _take_ranks_of_slurm() -> None:
    """Set what PyTorch reads from the environment, as MMEngine does where there are GPUs."""
    environ = os.environ
    if 'MASTER_ADDR' not in environ:
        command = ['scontrol', 'show', 'hostnames', environ['SLURM_STEP_NODELIST']]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            raise ValueError(f'{" ".join(command)}: {found.stderr.strip()}; or set MASTER_ADDR')
        environ['MASTER_ADDR'] = found.stdout.split()[0]
    environ.setdefault('MASTER_PORT', '29500')
    for name, of_slurm in (('RANK', 'PROCID'), ('LOCAL_RANK', 'LOCALID'), ('WORLD_SIZE', 'NTASKS')):
        environ[name] = environ[f'SLURM_{of_slurm}']


def start_run(cfg: Config, resume: str | None) -> tuple[str | None, list[str]]:
    """Choose what a training starts from (:func:`set_resume`), and keep others out of its work dir.

    Returns:
        The weights of a first start, for :func:`build_runner`, and the notes for :func:`log_notes`.

    Raises:
        ValueError: If there is no such checkpoint, or another training uses the work dir.
    """
    first_weights = None if cfg.get('resume') else cfg.get('load_from')
    notes = set_resume(cfg, resume)
    return first_weights, notes + lock_work_dir(cfg.work_dir)


def log_notes(runner: Runner, notes: list[str]) -> None:
    """Log the notes of :func:`start_run` as warnings; ValueError if a key of ``custom_keys`` is misspelt."""
    wrapper = runner.cfg.get('optim_wrapper') or {}
    keys = check_custom_keys(wrapper.get('paramwise_cfg'), runner.model)
    # Ours checks more of them, and our base configs share keys.
    if keys and not str(wrapper.get('constructor')).startswith('mmlape.'):
        notes = [*notes, f'custom_keys without a parameter: {", ".join(keys)}']
    for note in notes:
        runner.logger.warning(note)


def set_resume(cfg: Config, wanted: str | None) -> list[str]:
    """Write into ``cfg`` what a run starts from (``resume``, ``load_from``), and add ``mmlape.ResumeCheckHook``.

    The main process decides for all. A run that SLURM or torchrun has restarted resumes by itself.

    Args:
        cfg: The config, changed in place.
        wanted: ``None``; a checkpoint; or ``'auto'`` for the last complete checkpoint in ``cfg.work_dir``, and a new
            start if there is none (``cfg.load_from`` is not changed then).

    Returns:
        Messages for the user.

    Raises:
        ValueError: If the checkpoint does not exist, is incomplete, or some process cannot see it.
    """
    hooks = cfg.get('custom_hooks') or []
    if not any(type_name(hook) == 'ResumeCheckHook' for hook in hooks):
        cfg.custom_hooks = [*hooks, dict(type='mmlape.ResumeCheckHook')]
    notes = []
    if wanted is None and cfg.get('resume', False):
        wanted = cfg.get('load_from') or 'auto'
    restarts = [os.environ.get(name, '0') for name in RESTARTS]
    # Of one machine that comes back to others, only those know.
    restarted = any(all_gather_object(any(count.isdigit() and int(count) for count in restarts)))
    if restarted and main_process_says(lambda: not wanted or pointer_of(cfg.work_dir).is_file()):
        # Also if the job names a checkpoint: the last one is ahead of that.
        notes.append('restarted by the cluster: resuming from the last checkpoint')
        wanted = 'auto'
    if wanted is None:
        if cfg.get('load_from'):
            main_process_says(lambda: existing_checkpoint(cfg.load_from))
        return notes
    if wanted == 'auto':
        checkpoint, found = main_process_says(lambda: last_complete_checkpoint(cfg.work_dir))
        notes += found
    else:
        checkpoint = main_process_says(lambda: complete_checkpoint(wanted))
    cfg.resume = checkpoint is not None
    if checkpoint is None:
        return [*notes, f'no checkpoint in {cfg.work_dir}: starting from the beginning']
    is_there = '://' in checkpoint or os.path.exists(checkpoint)
    all_see(is_there, f'{checkpoint} is not visible there; all nodes must share the work dir')
    cfg.load_from = checkpoint
    return [*notes, f'resuming from {checkpoint}']


def build_runner(cfg: Config, first_weights: str | None) -> Runner:
    """The runner of a config that :func:`set_resume` has changed.

    Its own config, also in the work dir and in checkpoints, is that of a first start with ``load_from=first_weights``,
    so a training from this file into another folder is a new one. ``cfg`` is changed in place.
    """
    resume, load_from = cfg.get('resume', False), cfg.get('load_from')
    if resume:
        cfg.resume, cfg.load_from = False, first_weights
    runner = make_runner(cfg)
    # The runner has copied them from the config; it uses these when training starts.
    runner._resume, runner._load_from = resume, load_from
    return runner


def make_runner(cfg: Config) -> Runner:
    """The runner of a config, with a shorter screen: what MMEngine prints of the environment, the config, the hooks and
    each parameter's settings, hundreds of lines, goes only to the log file. A default hook may be None, which is none.
    The text of the config, in the work dir and in checkpoints, is data (:class:`~mmlape.config_text.PlainConfig`)."""
    kind: Any = cfg.get('runner_type', 'Runner')
    kind = RUNNERS.get(kind) if isinstance(kind, str) else kind
    hooks = cfg.get('default_hooks') or {}
    for name in [name for name, hook in hooks.items() if hook is None and name not in _OFF]:
        del hooks[name]

    class ShortScreen(kind):
        def build_logger(self, *args: Any, **options: Any) -> logging.Logger:
            logger = super().build_logger(*args, **options)
            for handler in logger.handlers:
                if not isinstance(handler, logging.FileHandler):
                    handler.addFilter(lambda record: not str(record.msg).startswith(_LONG))
            return logger

    ShortScreen.__name__ = kind.__name__
    return ShortScreen.from_cfg(as_plain(cfg))
