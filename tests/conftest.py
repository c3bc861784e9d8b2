"""Fixtures shared by all tests."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

GOLDEN = Path(__file__).parent / 'data' / 'golden'


class Golden(NamedTuple):
    """What a published reference implementation computed: see tests/data/golden/README.md."""

    meta: dict[str, Any]
    state: dict[str, Tensor]
    arrays: dict[str, Tensor]


def load_golden(name: str) -> Golden:
    with np.load(GOLDEN / f'{name}.npz') as archive:
        meta = json.loads(bytes(archive['meta']))
        tensors = {key: torch.from_numpy(archive[key]) for key in archive.files if key != 'meta'}
    state = {key[6:]: value for key, value in tensors.items() if key.startswith('state/')}
    rest = {key: value for key, value in tensors.items() if not key.startswith('state/')}
    return Golden(meta, state, rest)


@pytest.fixture
def golden():
    """Loader of golden vectors by name."""
    return load_golden


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
