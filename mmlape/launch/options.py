"""What the options that training and testing share do to a config."""

from __future__ import annotations

import argparse
import os
from difflib import get_close_matches
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device

from mmlape.overrides import merge_overrides
from mmlape.shipped import find_config

from .arguments import AMP_DTYPES
from .weights import check_weights


def config_of(options: argparse.Namespace, made: Config | None = None) -> Config:
    """The config that the common options mean, with ``work_dir`` and ``launcher`` set.

    Args:
        options: What was parsed.
        made: A config that is in no file, which ``options.config`` names. Default: that is the name of a file.

    Raises:
        ValueError: If there is no such config, or ``--cfg-options`` names what it has not.
    """
    name = options.config.rpartition('/')[2] if made else find_config(options.config).stem
    cfg = merge_overrides(made or Config.fromfile(find_config(options.config)), options.cfg_options)
    check_weights(cfg, options.allow_partial)
    cfg.launcher = options.launcher or ('pytorch' if _under_torchrun() else 'none')
    os.environ.setdefault('LOCAL_RANK', str(options.local_rank))
    if options.work_dir is not None:
        cfg.work_dir = options.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = os.path.join('work_dirs', name)
    return cfg


def enable_amp(cfg: Config, dtype: str) -> None:
    """Automatic mixed precision: ``'fp16'`` with a dynamic loss scale, ``'bf16'`` without any.

    Raises:
        ValueError: If there is no accelerator, the GPU has no bfloat16, or the config's optimizer wrapper is neither
            ``OptimWrapper`` nor ``AmpOptimWrapper``.
    """
    dtype = AMP_DTYPES[dtype]
    wrapper = cfg.optim_wrapper.get('type', 'OptimWrapper')
    if wrapper not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise ValueError(
            f'--amp needs an OptimWrapper, and the config has optim_wrapper.type={wrapper}'
        )
    if get_device() == 'cpu':
        raise ValueError('--amp needs a GPU, and none is visible')
    if dtype == 'bfloat16' and torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        raise ValueError('this GPU has no bfloat16: use --amp-dtype fp16')
    # float16 loses small gradients without a loss scale; bfloat16 has the range of float32.
    scale = 'dynamic' if dtype == 'float16' else dict(enabled=False)
    cfg.optim_wrapper.update(type='AmpOptimWrapper', dtype=dtype, loss_scale=scale)


def enable_lr_scaling(cfg: Config) -> None:
    """Scale the learning rate with the batch size, linearly, by MMEngine.

    Raises:
        ValueError: If the config does not say for which batch size its learning rate is.
    """
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    if not isinstance(base, int) or base < 1:
        raise ValueError(
            '--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) in the config: the '
            f'number of images per step that its learning rate is for; got {cfg.get("auto_scale_lr")}'
        )
    cfg.auto_scale_lr.enable = True


def existing_checkpoint(text: str, what: str = 'checkpoint') -> str:
    """``text`` if it is a file, a folder (sharded checkpoints) or an address.

    Raises:
        ValueError: If it is none; the message names what is there.
    """
    path = Path(text)
    if '://' in text or path.exists():
        return text
    there = sorted(p.name for p in path.parent.glob('*.pth')) if path.parent.is_dir() else []
    near = get_close_matches(path.name, there, 3, 0.3) or there[:3]
    hint = f'; in {path.parent} there are {", ".join(near)}' if near else ''
    hint = hint or ('' if path.parent.is_dir() else f'; there is no folder {path.parent} either')
    raise ValueError(f'there is no {what} {text!r}{hint}')


def _under_torchrun() -> bool:
    return all(name in os.environ for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR'))
