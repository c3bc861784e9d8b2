"""The state of a training in a checkpoint, checked before a run resumes from it.

``weights_only`` makes sure that a file is data. Here the data are checked: they say what is deleted, how many batches
are skipped, and what the optimizer computes with. Entries that are missing are for ``mmlape.CheckWeightsHook``.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.hooks import CheckpointHook
from mmengine.logging import HistoryBuffer
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import IterBasedTrainLoop, Runner, find_latest_checkpoint
from torch.utils.data import DataLoader

from mmlape.checkpoints import CheckpointError

OUTDATED = 'outdated_best_ckpts'
IMAGES = 'images_per_step'
_MOST = 2**53
_SEEDS = 2**32 - 1  # NumPy takes no others
# Positions count batches: a run with a smaller batch size resumes at a higher one.
_LARGER_BATCH = 100
_LONGEST_NAME = 255 - len('.sha256')
# Optimizer states of the shape of their parameter. Fused kernels read these without checking their sizes.
_OF_EACH_VALUE = {
    *('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'exp_inf', 'momentum_buffer', 'sum'),
    *('square_avg', 'acc_delta', 'grad_avg', 'prev', 'step_size', 'ax'),
}


def check_training_state(runner: Any, checkpoint: dict[str, Any]) -> None:
    """Refuse a checkpoint that this run cannot resume from.

    Names of files become names in the folder of this run's checkpoints, or are dropped if the checkpoint is elsewhere.

    Args:
        runner: The runner, whose loop, optimizer and schedules are built.
        checkpoint: What was read; changed in place.

    Raises:
        CheckpointError: With the file, the entry, its value, and what is accepted.
    """
    try:
        if checkpoint.get('meta') is not None:
            _check_meta(runner, _a_dict('meta', checkpoint['meta']))
        if checkpoint.get('message_hub') is not None:
            _check_message_hub(runner, _a_dict('message_hub', checkpoint['message_hub']))
        if 'ema_state_dict' in checkpoint:
            steps = _a_dict('ema_state_dict', checkpoint['ema_state_dict']).get('steps', 0)
            _integer('ema_state_dict.steps', _plain(steps), _MOST)
        if 'optimizer' in checkpoint:
            wrapper = getattr(runner, 'optim_wrapper', None)
            if isinstance(runner, Runner) and isinstance(wrapper, (OptimWrapper, OptimWrapperDict)):
                _check_optimizer('optimizer', checkpoint['optimizer'], wrapper, _file_of(runner))
        if 'param_schedulers' in checkpoint:
            _check_schedules(
                'param_schedulers', checkpoint['param_schedulers'], runner.param_schedulers
            )
    except CheckpointError as error:
        raise CheckpointError(f'{_file_of(runner)} cannot be resumed: {error}') from error.__cause__


def _file_of(runner: Any) -> str:
    return str(runner._load_from or find_latest_checkpoint(runner.work_dir))


def images_per_step(loader: DataLoader) -> int:
    """How many images all processes together load for a step."""
    batches = getattr(loader, 'batch_sampler', None)
    return (getattr(batches, 'batch_size', None) or 1) * get_dist_info()[1]


def _need(condition: Any, name: str, value: Any, accepted: str) -> None:
    if not condition:
        raise CheckpointError(f'{name} must be {accepted}, got {_shown(value)}')


def _shown(value: Any) -> str:
    """A value of a file, short and in one line."""
    return ' '.join(reprlib.repr(value).split())


def _a_dict(name: str, value: Any) -> dict[str, Any]:
    texts = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    _need(texts, name, value, 'a dict with texts as keys')
    return value


def _integer(name: str, value: Any, most: int, least: int = 0, why: str = '') -> None:
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    _need(
        integral and least <= int(value) <= most,
        name,
        value,
        f'an integer from {least} to {most}{why}',
    )


def _number(name: str, value: Any) -> None:
    value = _plain(value)
    real = isinstance(value, Real) and not isinstance(value, bool)
    _need(real and not math.isnan(value), name, value, 'a number')


def _plain(value: Any) -> Any:
    """A tensor or an array of one number as that number."""
    single = isinstance(value, (torch.Tensor, np.ndarray, np.generic))
    return value.item() if single and math.prod(value.shape) == 1 else value


def _check_meta(runner: Any, meta: dict[str, Any]) -> None:
    meta.pop('config', None)  # MMCV's; MMEngine would only count the GPUs in it
    loop = runner.train_loop
    if 'epoch' in meta:
        _integer('meta.epoch', meta['epoch'], _MOST)
    if 'iter' in meta:
        by_iter = isinstance(loop, IterBasedTrainLoop)
        limit = (loop.max_iters, 0, ' (train_cfg.max_iters)') if by_iter else (_MOST,)
        _integer('meta.iter', meta['iter'], *limit)
    if meta.get('seed') is not None:
        _integer('meta.seed', meta['seed'], _SEEDS)
    if IMAGES in meta:
        record = _a_dict(f'meta.{IMAGES}', meta[IMAGES])
        for key, least in dict(processes=1, images=0, accumulated=1).items():
            _integer(f'meta.{IMAGES}.{key}', record.get(key), _MOST, least)
    if meta.get('exact_resume'):
        name, record = 'meta.exact_resume', _a_dict('meta.exact_resume', meta['exact_resume'])
        _integer(f'{name}.seed', record.get('seed'), _SEEDS)
        _integer(f'{name}.images', record.get('images'), _MOST, 1)
        _integer(f'{name}.place', record.get('place'), *_last_place(loop, record['images']))
        done = record.get('validated')
        _need(isinstance(done, (bool, type(None))), f'{name}.validated', done, 'True or False')


def _last_place(loop: Any, images: int) -> tuple[int, int, str]:
    """How many batches of so many images this run may skip at most."""
    now = images_per_step(loop.dataloader)
    if isinstance(loop, IterBasedTrainLoop):
        most = _LARGER_BATCH * loop.max_iters * now // images
        return most, 0, f' (those of a training of {loop.max_iters} iterations)'
    try:
        batches = len(loop.dataloader)
    except TypeError:  # data without an index, of which nothing is skipped
        return _MOST, 0, ''
    # The last batches of both runs may be smaller than the others, or left out.
    return ((batches + 1) * now + images) // images, 0, ' (the length of an epoch)'


def _check_message_hub(runner: Any, hub: dict[str, Any]) -> None:
    scalars = _a_dict('message_hub.log_scalars', hub.get('log_scalars'))
    for key, history in scalars.items():
        if isinstance(history, HistoryBuffer):  # MMEngine leaves out others
            _check_history(f'message_hub.log_scalars[{_shown(key)}]', history)
    name = 'message_hub.runtime_info'
    info = _a_dict(name, hub.get('runtime_info'))
    resumed = _a_dict('message_hub.resumed_keys', hub.get('resumed_keys'))
    # MMEngine saves what it resumes, and nothing else. In their order, so that a resumed run saves the same file.
    known = {**scalars, **info}
    hub['resumed_keys'] = dict.fromkeys((*(key for key in resumed if key in known), *known), True)
    for key in info.keys() & {'epoch', 'iter'}:
        _integer(f'{name}.{key}', info[key], _MOST)
    if 'eta' in info:
        _number(f'{name}.eta', info['eta'])
        _need(0 <= info['eta'] < 10**12, f'{name}.eta', info['eta'], 'a number of seconds')
    for key in (key for key in info if key.startswith('best_score')):
        _number(f'{name}.{_shown(key)}', info[key])
    _check_names(runner, name, info)


def _check_history(name: str, history: HistoryBuffer) -> None:
    values, counts = (vars(history).get(each) for each in ('_log_history', '_count_history'))
    right = isinstance(values, np.ndarray) and isinstance(counts, np.ndarray)
    right = right and values.shape == counts.shape == (values.size,) and values.size > 0
    right = right and (counts > 0).all()
    _need(right, name, (values, counts), 'as many values as counts above 0, at least one')
    _integer(f'{name}.max_length', getattr(history, 'max_length', None), _MOST, 1)


def _check_names(runner: Any, name: str, info: dict[str, Any]) -> None:
    """Check the names of files that MMEngine's hook and ours delete or publish."""
    file = _file_of(runner)
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    template = hooks[0].filename_tmpl if hooks else ''
    endings = ('.pth', Path(template).suffix or '.pth')
    for key in (key for key in info if key.startswith('best_ckpt')):
        _need(isinstance(info[key], str), f'{name}.{_shown(key)}', info[key], 'a path')
        # The work dir may have been moved, or copied.
        info[key] = info[key].replace('\\', '/').rpartition('/')[2]
        _check_name(f'{name}.{_shown(key)}', info[key], endings)
    outdated = info.get(OUTDATED, [])
    _need(isinstance(outdated, list), f'{name}.{OUTDATED}', outdated, 'a list of names of files')
    for each in outdated:
        _check_name(f'{name}.{OUTDATED}', each, endings)
    steps = info.get('keep_ckpt_ids', [])
    _need(isinstance(steps, list), f'{name}.keep_ckpt_ids', steps, 'a list of integers')
    for step in steps:
        _integer(f'{name}.keep_ckpt_ids', step, _MOST)
    if info.get('last_ckpt') is not None:
        info['last_ckpt'] = file
    folder = str(runner.work_dir)
    if hooks and hooks[0].out_dir not in (None, folder):
        folder = f'{str(hooks[0].out_dir).rstrip("/")}/{Path(folder).name}'
    bests = [key for key in info if key.startswith('best_ckpt')]
    if _folder(file) == _folder(f'{folder}/file'):
        info.update({key: f'{folder.rstrip("/")}/{info[key]}' for key in bests})
        return
    # The checkpoint is of another folder: files of the same names in this one are others, none of which is deleted.
    for key in (*bests, OUTDATED, 'keep_ckpt_ids'):
        info.pop(key, None)


def _check_name(entry: str, name: Any, endings: tuple[str, ...]) -> None:
    right = isinstance(name, str) and name.startswith('best_') and name.endswith(endings)
    right = right and name.isprintable() and not {'/', '\\'} & set(name)
    right = right and len(name.encode(errors='replace')) <= _LONGEST_NAME
    accepted = ' or '.join(f'best_*{each}' for each in dict.fromkeys(endings))
    _need(right, entry, name, f'the name of a file without its folder, {accepted}')


def _folder(file: str) -> str:
    return file.rpartition('/')[0] if '://' in file else str(Path(file).parent.resolve())


def _check_schedules(name: str, states: Any, own: Any) -> None:
    if own is None:
        return
    if isinstance(own, dict):
        states = _a_dict(name, states)
        for key in own:
            _check_schedules(f'{name}.{key}', states.get(key), own[key])
        return
    _need(isinstance(states, (list, tuple)), name, states, 'a list of dicts')
    for i, (state, schedule) in enumerate(zip(states, own)):
        entry, known = f'{name}[{i}]', schedule.state_dict()
        for key, value in _a_dict(entry, state).items():
            taken = key == 'optimizer' or hasattr(type(schedule), key)
            _need(not taken, f'{entry}.{key}', value, f'left out, as a part of {type(schedule)}')
            if key in known:
                _check_alike(f'{entry}.{key}', value, known[key])


def _check_alike(name: str, value: Any, own: Any) -> None:
    """Refuse what is not of the kind that this run has in its place."""
    if isinstance(own, Mapping):
        _need(isinstance(value, Mapping), name, value, 'a dict')
        for key in own.keys() & value.keys() - {'params'}:
            _check_alike(f'{name}[{_shown(key)}]', value[key], own[key])
        plain = all(isinstance(key, (str, Real)) for key in value)
        _need(plain, name, value, 'a dict with texts or numbers as keys')
    elif isinstance(own, (list, tuple)):
        many = isinstance(value, (list, tuple)) and len(value) == len(own)
        _need(many, name, value, f'a list of {len(own)}')
        for i, (each, mine) in enumerate(zip(value, own)):
            _check_alike(f'{name}[{i}]', each, mine)
    elif isinstance(own, (bool, type(None))):
        if not isinstance(value, (bool, type(None))):
            _number(name, value)
    elif isinstance(own, (Real, torch.Tensor)):
        _number(name, value)
    else:
        _need(isinstance(value, type(own)), name, value, f'a {type(own).__name__}')


def _check_optimizer(name: str, state: Any, wrapper: Any, file: str) -> None:
    state = _a_dict(name, state)
    if isinstance(wrapper, OptimWrapperDict):
        _need(state.keys() == dict(wrapper.items()).keys(), name, state, 'one for each optimizer')
        for key, each in wrapper.items():
            _check_optimizer(f'{name}.{key}', state[key], each, file)
        return
    optimizer = wrapper.optimizer
    own: dict[str, Any] = dict(param_groups=optimizer.param_groups)
    own['base_param_settings'] = wrapper.base_param_settings or optimizer.defaults
    if hasattr(wrapper, 'loss_scaler'):
        own['loss_scaler'] = wrapper.loss_scaler.state_dict()
    for key in own.keys() & state.keys() - {'state'}:
        _check_alike(f'{name}.{key}', state[key], own[key])
    try:  # PyTorch compares the groups; the runner loads the same state again
        wrapper.load_state_dict(dict(state))
    except Exception as error:  # it stumbles in any way over a state of another kind
        raise CheckpointError(f'{name}: {_reason(error)}') from error
    for group in wrapper.param_groups:
        _need('lr' in group, f'{name}.param_groups', list(group), "groups with 'lr'")
    for parameter, values in optimizer.state.items():
        if isinstance(parameter, torch.Tensor):
            for key, value in _a_dict(f'{name}.state', values).items():
                _check_value(f'{name}.state.{key}', key, value, parameter)
    _name_file_at_first_step(optimizer, f'{file} cannot be resumed: {name}')


def _check_value(name: str, key: str, value: Any, parameter: torch.Tensor) -> None:
    if key == 'step':
        _number(name, value)
    elif key in _OF_EACH_VALUE and value is not None:
        right = isinstance(value, torch.Tensor) and value.shape == parameter.shape
        if right:  # not a view that repeats fewer values
            end = (value.storage_offset() + value.numel()) * value.element_size()
            right = end <= value.untyped_storage().nbytes()
        _need(right, name, getattr(value, 'shape', value), f'of shape {tuple(parameter.shape)}')


def _name_file_at_first_step(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Name the file in an error of the optimizer's first step, which alone knows what state the optimizer needs."""
    step = optimizer.step

    @wraps(step)
    def first_step(*args: Any, **options: Any) -> Any:
        try:
            result = step(*args, **options)
        except torch.OutOfMemoryError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise CheckpointError(f'{name} does not fit: {_reason(error)}') from error
        optimizer.step = step  # type: ignore[method-assign]
        return result

    optimizer.step = first_step  # type: ignore[method-assign]


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {lines[0][:300]}'
