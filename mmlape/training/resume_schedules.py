"""Schedules of a config against those of the checkpoint that a training resumes from, which MMEngine goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.runner import IterBasedTrainLoop

from mmlape.checkpoints.report import listed

# How far a schedule is, and what it has computed.
_STATE = {'last_step', 'base_values', '_global_step', '_last_value', 'verbose'}


def differences(own: Any, states: Any, name: str = 'param_scheduler') -> list[str]:
    """Compare the schedules of the config with those of a checkpoint: a text for each difference.

    Args:
        own: The schedules of the runner: a list, or one for each optimizer of a dict.
        states: Their states in the checkpoint, of the same form (``check_training_state`` has seen to that).
        name: For the texts.
    """
    if isinstance(own, Mapping):
        return [
            text for key in own for text in differences(own[key], states.get(key), f'{name}.{key}')
        ]
    if not isinstance(own, (list, tuple)) or not isinstance(states, (list, tuple)):
        return []
    found = []
    if len(own) != len(states):
        found.append(f'{len(states)} in {name}, {len(own)} in the config')
    for index, (schedule, state) in enumerate(zip(own, states)):
        for key, value in schedule.state_dict().items():
            if key not in _STATE and key in state and state[key] != value:
                found.append(f'{name}[{index}].{key} = {state[key]}, {value} in the config')
    return found


def schedule_warning(runner: Any, checkpoint: Mapping[str, Any]) -> str | None:
    """A warning if the rate of a training that is resumed is not the one that its config makes one expect; else None.

    Either the schedules are others than in the checkpoint, or the training became longer and the schedules did not.
    """
    own, states = runner.param_schedulers, checkpoint.get('param_schedulers')
    if not own or states is None:
        return None
    file = runner._load_from or 'CHECKPOINT'
    right = (
        'For another schedule, start a new training from these weights, in another work dir and without --resume: '
        f"--cfg-options load_from='{file}'"
    )
    if found := differences(own, states):
        return (
            'the schedules are those of the checkpoint, and not those of the config, which has others: '
            f'{listed(found, 5)}. The learning rate goes on as it would have in that training. {right}'
        )
    loop = runner.train_loop
    unit = 'iters' if isinstance(loop, IterBasedTrainLoop) else 'epochs'
    info = (checkpoint.get('message_hub') or {}).get('runtime_info') or {}
    before, now = info.get(f'max_{unit}'), getattr(loop, f'max_{unit}')
    before_iters = info.get('max_iters')
    if not (_is_count(before) and _is_count(before_iters)) or now <= before:
        return None
    ends = [
        schedule.end > (before if schedule.by_epoch and unit == 'epochs' else before_iters)
        for each in (own.values() if isinstance(own, Mapping) else [own])
        for schedule in each
    ]
    if not ends or any(ends):
        return None
    return (
        f'the training has {now} {unit}, {before} before, and its schedules end with those: the learning rate stays '
        f'as it is then. {right}'
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
