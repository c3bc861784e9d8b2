"""The processes of one run: started by torchrun, SLURM or MPI, or just this one."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import (
    all_gather_object,
    get_rank,
    init_dist,
    is_distributed,
)
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing

from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.reading import weights_only_everywhere
from mmlape.training.check_data import main_process_says
from mmlape.training.devices import CpuHook


@contextmanager
def joined(cfg: Config) -> Iterator[None]:
    """Initialize the process group of ``cfg.launcher``, before the runner does, and destroy it at the end.

    Without an accelerator it is gloo's, on CPUs, which upstream's runner does not support. Only
    ``launcher='pytorch'`` works there, others raise ValueError.
    """
    if cfg.launcher != 'none' and not is_distributed():
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


def lock_work_dir(work_dir: str) -> None:
    """Keep other trainings out of ``work_dir`` until this process ends, however it ends.

    The lock is the operating system's, so a killed process leaves none behind; data workers do not inherit it, unlike
    filelock's. A file system without locks is not protected.

    Raises:
        ValueError: In all processes, if another training uses the folder.
    """
    main_process_says(lambda: _lock(Path(work_dir, '.lock')))


def _lock(path: Path) -> None:
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
    except OSError:
        return
    os.ftruncate(file, 0)
    os.pwrite(file, f'process {os.getpid()} on {socket.gethostname()}\n'.encode(), 0)


@contextmanager
def stop_with_message(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with one line, not a traceback, at errors of these ``kinds`` (``ValueError``, ``TypeError``)."""
    handled = kinds or (ValueError, TypeError)
    try:
        yield
    except handled as error:
        sys.exit(f'error: {error}' if get_rank() == 0 else 1)


@contextmanager
def weights_only() -> Iterator[None]:
    """A run that executes no code of a checkpoint, and ends with one line if one cannot be loaded."""
    safe_loading()
    with stop_with_message(CheckpointError), weights_only_everywhere():
        yield


def _join_on_cpu(cfg: Config, options: dict) -> None:
    if cfg.launcher != 'pytorch':
        raise ValueError(
            f'--launcher {cfg.launcher} needs GPUs, and none is visible; torchrun does not'
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
