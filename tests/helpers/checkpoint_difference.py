"""Whether two trainings came to the same end."""

from pathlib import Path

import torch

TIMES = ('time', 'data_time', 'cfg', 'experiment_name', 'memory', 'eta')


def difference(one, other, path: str = '', ignore: tuple[str, ...] = TIMES) -> str | None:
    """Where two checkpoints differ, apart from times and the work dir's name; None if they do not."""
    if isinstance(one, torch.Tensor):
        return None if isinstance(other, torch.Tensor) and torch.equal(one, other) else path
    if type(one) is not type(other):
        return f'{path}: {type(one)} and {type(other)}'
    if isinstance(one, dict):
        if list(one) != list(other):
            return f'{path}: {set(one) ^ set(other) or "order"}'
        pairs = [
            (key, one[key], other[key]) for key in one if str(key).split('/')[-1] not in ignore
        ]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f'{path}: {len(one)} and {len(other)} entries'
        pairs = list(zip(range(len(one)), one, other, strict=True))
    elif hasattr(one, '_log_history'):
        pairs = [('history', one._log_history.tolist(), other._log_history.tolist())]
    elif isinstance(one, str) and '/whole/' in one:
        return None if Path(one).name == Path(other).name else path
    else:
        return None if one == other or one != one else f'{path}: {one!r} and {other!r}'
    faults = (difference(a, b, f'{path}/{key}', ignore) for key, a, b in pairs)
    return next((fault for fault in faults if fault), None)
