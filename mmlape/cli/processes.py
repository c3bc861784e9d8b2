"""The processes of one run: started by torchrun, SLURM or MPI, or just this one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

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
from mmlape.training.devices import CpuHook


@contextmanager
def joined(cfg: Config) -> Iterator[None]:
    """Join the processes of ``cfg.launcher``, and leave them at the end.

    The runner would join them as well, but some questions are to be settled before it exists. Without an accelerator
    the processes use gloo and the CPU (``launcher='pytorch'``), which upstream's runner cannot by itself.

    Raises:
        ValueError: If another launcher is asked for without an accelerator.
    """
    if cfg.launcher != 'none' and not is_distributed():
        environment = cfg.get('env_cfg') or {}
        options = dict(environment.get('dist_cfg') or {})
        if get_device() == 'cpu':
            _join_on_cpu(cfg, options)
        else:
            # First, as in the runner: joining settles how data workers start unless that is settled.
            set_multi_processing(**(environment.get('mp_cfg') or {}), distributed=True)
            init_dist(cfg.launcher, **options)
    yield
    # Not in a `finally`: after an error the others may be gone, and leaving would wait for them.
    if is_distributed():
        # A wrapped model holds its group of processes. What is in a circle goes only now, and with it the group's
        # threads: one that still runs while Python ends takes the process down (SIGABRT), now and then.
        gc.collect()
        torch.distributed.destroy_process_group()


def optimize_on_cpu(runner: Runner) -> None:
    """Where there is no accelerator, have the runner's model optimized before it runs, see ``mmlape.cpu.optimize``."""
    known = any(isinstance(hook, CpuHook) for hook in runner.hooks)
    if get_device() == 'cpu' and not known:
        runner.register_hook(CpuHook())


def all_see(condition: bool, what: str) -> None:
    """Make sure that something holds in every process.

    Raises:
        ValueError: In all processes, if it does not hold in one; ``what`` says what that means.
    """
    answers = all_gather_object(bool(condition))
    missing = [str(rank) for rank, answer in enumerate(answers) if not answer]
    if missing:
        raise ValueError(f'process {", ".join(missing)} of {len(answers)}: {what}')


@contextmanager
def stop_with_message(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with one line, not a traceback, when what the user asked for cannot be done.

    Args:
        kinds: Errors that say so. Default ``ValueError`` and ``TypeError``.
    """
    taken = kinds or (ValueError, TypeError)
    try:
        yield
    except taken as error:
        sys.exit(f'error: {error}' if get_rank() == 0 else 1)


@contextmanager
def weights_only() -> Iterator[None]:
    """A run that executes nothing out of a checkpoint, and ends with one line where one cannot be taken."""
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
