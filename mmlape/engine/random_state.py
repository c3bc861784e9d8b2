"""The state of all random number generators as plain data, and back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ['random_state', 'set_random_state']


def random_state() -> dict[str, Any]:
    """The states of Python, NumPy, PyTorch and this process's GPU: tensors, numbers and strings, 20 microseconds."""
    name, keys, *rest = np.random.get_state(legacy=True)
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return dict(
        python=random.getstate(),
        numpy=(name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state() if cuda else None,
    )


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what :func:`random_state` returned; a GPU's state only where there is a GPU."""
    random.setstate(state['python'])
    name, keys, *rest = state['numpy']
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state['torch'])
    if state['cuda'] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'])
