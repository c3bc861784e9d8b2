"""A config: does it parse, do model and data fit together, are its weights there, does the learning rate fit?"""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .check import ERROR, OK, WARNING, Check, first_line
from .machine import GIB, Machine

MAX_DECODED = 50
SECONDS = 10


def load_config(text: str) -> tuple[Any | None, Check]:
    """The config by its file or name, or None, and what is said of it."""
    from mmengine.config import Config

    from mmlape.shipped import find_config

    try:
        path = find_config(text)
        cfg = Config.fromfile(path)
    except Exception as error:  # a config is a program
        return None, Check(
            'config', ERROR, f'{text}: {" ".join(str(error).split())}', 'see docs/guide.md'
        )
    if not cfg.get('work_dir'):
        cfg.work_dir = os.path.join('work_dirs', path.stem)
    return cfg, Check('config', OK, str(path))


def training_checks(machine: Machine, cfg: Any) -> list[Callable[[], Any]]:
    """In the order in which they are shown."""
    training = _Training(machine, cfg)
    return [
        training.model_check,
        training.memory_check,
        training.disk_check,
        *[partial(_data, cfg, split) for split in ('train', 'val', 'test')],
        partial(_weights, cfg),
        partial(_learning_rate, machine, cfg),
    ]


class _Training:
    """Checks that need the model, which is built once."""

    def __init__(self, machine: Machine, cfg: Any) -> None:
        self.machine, self.cfg = machine, cfg

    @cached_property
    def model(self) -> Any:
        """It, or the error that came of building it."""
        import copy

        from mmengine.registry import MODELS, init_default_scope

        init_default_scope(self.cfg.get('default_scope') or 'mmengine')
        model = copy.deepcopy(self.cfg.model)
        if self.cfg.get('data_preprocessor'):
            model.setdefault('data_preprocessor', self.cfg.data_preprocessor)
        try:
            return MODELS.build(model)
        except Exception as error:  # whatever its parts raise
            return error

    @property
    def bytes_of_training(self) -> tuple[float, float]:
        """GiB of parameters, gradients and AdamW's two averages; of a checkpoint, which has no gradients."""
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        fixed = sum(p.numel() for p in self.model.parameters()) - trained
        return 4 * (4 * trained + fixed) / GIB, 4 * (3 * trained + fixed) / GIB

    def model_check(self) -> Check:
        if isinstance(self.model, Exception):
            found = f'cannot be built: {type(self.model).__name__}: {first_line(self.model)}'
            return Check('model', ERROR, found, 'docs/troubleshooting.md lists such messages')
        millions = sum(p.numel() for p in self.model.parameters()) / 1e6
        return Check('model', OK, f'{type(self.model).__name__}, {millions:.1f} million parameters')

    def memory_check(self) -> list[Check]:
        if isinstance(self.model, Exception) or not self.machine.gpus:
            return []
        needed, least = self.bytes_of_training[0], min(g['memory'] for g in self.machine.gpus) / GIB
        found = f'{needed:.1f} of {least:.0f} GiB before any image: weights, gradients, AdamW'
        if needed > least:
            return [Check('GPU memory', ERROR, found, 'a larger GPU, or FSDP (docs/training.md)')]
        return [Check('GPU memory', OK, found)]

    def disk_check(self) -> list[Check]:
        """Room for all checkpoints that are kept, the best one, and one that is being written."""
        hook = (self.cfg.get('default_hooks') or {}).get('checkpoint') or {}
        if isinstance(self.model, Exception):
            return []
        folder = Path(self.cfg.work_dir).resolve()
        while not folder.exists():
            folder = folder.parent
        kept, free = hook.get('max_keep_ckpts', -1), shutil.disk_usage(folder).free / GIB
        one = self.bytes_of_training[1]
        number = (kept if kept > 0 else 1) + bool(hook.get('save_best')) + 1
        found = f'{number} of {one:.2f} GiB{" and every further one" if kept <= 0 else ""}; {free:.0f} GiB are free'
        if free < number * one:
            advice = 'another disk (--work-dir), or fewer: default_hooks.checkpoint.max_keep_ckpts'
            return [Check('checkpoints', ERROR, found, advice)]
        if kept <= 0:
            advice = 'all are kept: default_hooks.checkpoint.max_keep_ckpts=3'
            return [Check('checkpoints', WARNING, found, advice)]
        return [Check('checkpoints', OK, found)]


def _data(cfg: Any, split: str) -> list[Check]:
    """As mmlape.CheckDataHook does, which decodes more."""
    from mmlape.engine import CheckDataHook

    if not cfg.get(f'{split}_dataloader'):
        return []
    notes: list[str] = []
    runner = SimpleNamespace(cfg=cfg, logger=SimpleNamespace(info=notes.append))
    name = f'{split} data'
    try:
        problems = CheckDataHook(max_decode=MAX_DECODED)._problems(runner, [split])
    except Exception as error:
        return [
            Check(name, ERROR, f'{type(error).__name__}: {first_line(error)}', 'see docs/data.md')
        ]
    if problems:
        return [Check(name, ERROR, _items(problems), 'see docs/data.md')]
    gone = [
        root
        for root in _roots(cfg[f'{split}_dataloader'].get('dataset'))
        if not Path(root).exists()
    ]
    if gone:
        return [Check(name, ERROR, f'the folder {gone[0]!r} does not exist', 'see docs/data.md')]
    return [Check(name, OK, _items('\n'.join(notes)))]


def _items(report: str) -> str:
    """The points of what CheckDataHook says, in one line."""
    lines = [line[4:] for line in report.splitlines() if line.startswith('  - ')]
    return '; '.join(line for line in lines if not line.startswith('checked in'))


def _roots(value: Any) -> Iterator[str]:
    """Local ``data_root`` of all data sets, which may be inside of others."""
    if isinstance(value, dict):
        root = value.get('data_root')
        if root and '://' not in root and not value.get('backend_args'):
            yield root
        for entry in value.values():
            yield from _roots(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _roots(entry)


def _weights(cfg: Any) -> list[Check]:
    named = [*_checkpoints(cfg.model.to_dict())]
    if cfg.get('load_from'):
        named.append(str(cfg.load_from))
    if named:
        return [_weight(text) for text in dict.fromkeys(named)]
    found = 'none are named: training begins with random ones'
    if cfg.get('default_scope') == 'mmpretrain':
        return [Check('weights', OK, found)]
    return [
        Check(
            'weights',
            WARNING,
            found,
            'if that is not meant: init_cfg of the backbone (docs/weights.md)',
        )
    ]


def _checkpoints(value: Any) -> Iterator[str]:
    """Files and addresses in ``init_cfg``, and models of timm."""
    if isinstance(value, dict):
        if str(value.get('type', '')).endswith('Pretrained'):
            if value.get('checkpoint'):
                yield str(value['checkpoint'])
            elif value.get('model'):
                yield f'timm:{value["model"]}'
        for entry in value.values():
            yield from _checkpoints(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _checkpoints(entry)


def _weight(text: str) -> Check:
    import torch

    fetch = 'fetch them where there is a network (docs/cluster.md, "Weights for nodes without a network")'
    if text.startswith('timm:'):
        import timm

        if timm.is_model(text.removeprefix('timm:')):
            return Check(
                'weights', OK, f'{text}, which timm fetches at the start unless it has them'
            )
        return Check(
            'weights', ERROR, f'{text}: timm has no such model', 'timm.list_models() has the names'
        )
    if '://' not in text:
        if Path(text).exists():
            return Check('weights', OK, text)
        return Check('weights', ERROR, f'{text} does not exist', 'correct init_cfg or load_from')
    if not text.startswith(('http://', 'https://')):
        return Check('weights', OK, f'{text} (not looked for)')
    cached = Path(torch.hub.get_dir(), 'checkpoints', text.rpartition('/')[2])
    if cached.is_file():
        return Check('weights', OK, f'{cached.name} is in {cached.parent}')
    try:
        request = urllib.request.Request(text, method='HEAD')
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            size = int(answer.headers.get('Content-Length') or 0) / 1024**2
        return Check('weights', OK, f'{text} can be fetched ({size:.0f} MiB)')
    except (OSError, ValueError) as error:
        return Check(
            'weights',
            ERROR,
            f'{text} is not in {cached.parent} and cannot be fetched ({error})',
            fetch,
        )


def _learning_rate(machine: Machine, cfg: Any) -> list[Check]:
    """Is it that of the number of images per step?"""
    wrapper, scaling = cfg.get('optim_wrapper') or {}, cfg.get('auto_scale_lr') or {}
    rate, base = (wrapper.get('optimizer') or {}).get('lr'), scaling.get('base_batch_size')
    batch = (cfg.get('train_dataloader') or {}).get('batch_size')
    if rate is None or batch is None:
        return []
    name, processes = 'learning rate', int(os.environ.get('WORLD_SIZE') or machine.processes)
    images = batch * processes * wrapper.get('accumulative_counts', 1)
    found = f'{rate:g}; {processes} process{"es" * (processes > 1)} x {batch} = {images} images per step'
    if not isinstance(rate, (int, float)) or rate <= 0:
        return [Check(name, ERROR, found, 'nothing would be learned: optim_wrapper.optimizer.lr')]
    if base is None:
        return [Check(name, OK, f'{found} (for which number it is, the config does not say)')]
    if images == base or scaling.get('enable'):
        return [Check(name, OK, f'{found}, for {base}{", scaled" if images != base else ""}')]
    advice = f'--auto-scale-lr (makes it {rate * images / base:.3g})'
    share, rest = divmod(base, processes)
    advice += '' if rest else f', or train_dataloader.batch_size={share}'
    return [Check(name, WARNING, f'{found}, but it is for {base}', f'{advice} (docs/training.md)')]
