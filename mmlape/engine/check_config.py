"""What a config says beyond the model: numbers that no training can have, and data that are not there."""

from __future__ import annotations

import os.path as osp
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mmengine.config import Config

from mmlape.checks import check_bool, check_number, check_positive_int

from .data_files import is_local, missing_folder
from .findings import Findings, listed

__all__ = ['check_config', 'check_data_is_there', 'leaf_datasets']

_SPLITS = ('train', 'val', 'test')
_positive = partial(check_number, above=0)
_whole = partial(check_positive_int, minimum=0)


def _at_least_zero(name: str, value: Any) -> None:
    if check_number(name, value) < 0:
        raise ValueError(f'{name} must be at least 0, got {value}')


def _interval(name: str, value: Any) -> None:
    if value != -1:  # MMEngine's word for never
        check_positive_int(name, value)


# Where in a config, and what is accepted there. None is left to whoever reads it.
_RULES: dict[str, Callable[[str, Any], Any]] = {
    'train_cfg.max_epochs': check_positive_int,
    'train_cfg.max_iters': check_positive_int,
    'train_cfg.val_interval': check_positive_int,
    'train_cfg.val_begin': check_positive_int,
    'train_cfg.by_epoch': check_bool,
    'default_hooks.checkpoint.interval': _interval,
    'default_hooks.logger.interval': check_positive_int,
    'auto_scale_lr.base_batch_size': check_positive_int,
    'randomness.seed': _whole,
    'randomness.deterministic': check_bool,
    'resume': check_bool,
    **{f'{split}_dataloader.batch_size': check_positive_int for split in _SPLITS},
    **{f'{split}_dataloader.num_workers': _whole for split in _SPLITS},
}
# Of every optimizer.
_OPTIMIZER: dict[str, Callable[[str, Any], Any]] = {
    'optimizer.lr': _positive,
    'optimizer.weight_decay': _at_least_zero,
    'optimizer.eps': _positive,
    'clip_grad.max_norm': _positive,
    'clip_grad.clip_value': _positive,
    'accumulative_counts': check_positive_int,
}
_SCHEDULE: dict[str, Callable[[str, Any], Any]] = {
    'start_factor': _positive,
    'gamma': _positive,
    'power': _positive,
    'eta_min': _at_least_zero,
    'warmup': check_positive_int,
    'begin': _whole,
    'end': check_positive_int,
    'T_max': check_positive_int,
    'by_epoch': check_bool,
}


def check_config(cfg: Config | Mapping[str, Any]) -> None:
    """Check numbers that upstream takes as they are, and class names.

    Learning rate, decay, clipping of gradients and schedules (where there are several optimizers, of each); length of
    the training, intervals, batch sizes and workers, the seed; and that no class name of a data set comes twice.

    Raises:
        ValueError: If a value is out of range, or a class name comes twice.
        TypeError: If a value has the wrong type.
    """
    _check_values(cfg, _RULES)
    wrapper = cfg.get('optim_wrapper')
    for path, each in _optim_wrappers(wrapper if isinstance(wrapper, Mapping) else {}):
        _check_values(each, _OPTIMIZER, path)
    for path, each in _schedules(cfg.get('param_scheduler') or [], 'param_scheduler.'):
        _check_values(each, _SCHEDULE, path)
    for split in _SPLITS:
        for dataset in leaf_datasets(_at(cfg, f'{split}_dataloader.dataset')):
            classes = (dataset.get('metainfo') or {}).get('classes')
            if isinstance(classes, (list, tuple)):
                _check_classes(f'{split}_dataloader.dataset.metainfo.classes', classes)


def check_data_is_there(cfg: Config | Mapping[str, Any], splits: Sequence[str]) -> None:
    """Raise ValueError if a folder or file that the data sets of ``splits`` name is not on this machine.

    The message ends with the config's ``data_from``, where it has one: how the data are made or where they come from.
    """
    reports = []
    for split in splits:
        for dataset in leaf_datasets(_at(cfg, f'{split}_dataloader.dataset')):
            findings = Findings(f'{split} data ({dataset.get("type")})')
            _look_for(dataset, findings)
            if findings.problems:
                reports.append(findings.report(findings.problems[:1]))
    if reports:
        source = cfg.get('data_from')
        raise ValueError(
            '\n'.join(['the data are not there:', *reports, *([source] if source else [])])
        )


def leaf_datasets(config: Any) -> Iterator[Mapping[str, Any]]:
    """Configs of the data sets inside wrappers such as ``ConcatDataset`` and ``RepeatDataset``."""
    if not isinstance(config, Mapping):
        return
    inner = config.get('datasets') or ([config['dataset']] if 'dataset' in config else None)
    if inner is None:
        yield config
        return
    for child in inner:
        yield from leaf_datasets(child)


def _check_values(
    config: Config | Mapping[str, Any], rules: Mapping[str, Callable[[str, Any], Any]], prefix=''
) -> None:
    for path, check in rules.items():
        value = _at(config, path)
        if value is not None:
            check(prefix + path, value)


def _optim_wrappers(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The optimizer wrapper, or those that it names, with their places."""
    yield 'optim_wrapper.', config
    for name, each in config.items():
        if isinstance(each, Mapping) and 'optimizer' in each:
            yield f'optim_wrapper.{name}.', each


def _schedules(config: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schedule; of several optimizers each may have its own."""
    if isinstance(config, Mapping) and 'type' not in config:
        for name, each in config.items():
            yield from _schedules(each, f'{path}{name}.')
        return
    for number, each in enumerate(config if isinstance(config, (list, tuple)) else [config]):
        if isinstance(each, Mapping):
            yield f'{path}{number}.', each


def _look_for(dataset: Mapping[str, Any], findings: Findings) -> None:
    """What a data set reads, the folder of all first."""
    root, backend_args = dataset.get('data_root') or '', dataset.get('backend_args')
    if not isinstance(root, str) or (root and not is_local(root, backend_args)):
        return
    if root and missing_folder(findings, root, 'data folder', backend_args):
        return
    prefix = dataset.get('data_prefix') or {}
    folders = prefix.values() if isinstance(prefix, Mapping) else [prefix]
    for folder in filter(None, folders):
        missing_folder(findings, osp.join(root, folder), 'folder', backend_args)
    file = dataset.get('ann_file')
    if isinstance(file, str) and file and not osp.exists(osp.join(root, file)):
        findings.problem(f'the annotation file {osp.join(root, file)!r} does not exist')


def _check_classes(name: str, classes: Sequence[Any]) -> None:
    twice = [each for each, times in Counter(map(str, classes)).items() if times > 1]
    if twice:
        raise ValueError(f'{name} must be different, {listed(twice)} come twice')


def _at(cfg: Config | Mapping[str, Any], path: str) -> Any:
    """The value at ``a.b.c``, None where there is none."""
    first, *rest = path.split('.')
    value = cfg.get(first)
    for key in rest:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
