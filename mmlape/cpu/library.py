"""The compiled operators in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from logging import INFO

import torch
from mmengine.logging import print_log
from torch import Tensor

from .build import SWITCH, BuildError, binary, build, is_intact, is_wanted

_FUNCTIONS = tuple(
    f'{name}_{way}_{dtype}'
    for name in ('deformable', 'dtn')
    for way in ('forward', 'backward')
    for dtype in ('float32', 'float64')
)


@cache
def library() -> tuple[ctypes.CDLL | None, str]:
    """The compiled operators, compiled now where that was not done before, or None and why there are none.

    Raises:
        ValueError: If the environment variable ``MMLAPE_OPS`` is neither ``'0'`` (off) nor ``'1'`` (on, the default).
    """
    if not is_wanted():
        return None, f'switched off by {SWITCH}=0'
    try:
        if not is_intact(binary()):
            text = 'operators (deformable attention, DTN) are compiled for CPUs, once per machine (seconds)'
            print_log(text, logger='current', level=INFO)
        core = ctypes.CDLL(str(build()))
        for name in _FUNCTIONS:
            getattr(core, name)
    except (BuildError, OSError, AttributeError) as error:
        return None, f'{error} (docs/install.md)'
    return core, ''


def call(
    name: str,
    dtype: torch.dtype,
    sizes: Sequence[int],
    arrays: Sequence[Tensor | None],
    eps: float = 0.0,
) -> None:
    """Call the C++ function of this name on dense arrays of this type, float32 or float64.

    Raises:
        RuntimeError: There are no compiled operators.
        MemoryError: There is not enough memory.
    """
    core, why = library()
    if core is None:
        raise RuntimeError(f'operators for CPUs are not there: {why}')
    function = getattr(core, f'{name}_{str(dtype).removeprefix("torch.")}')
    pointers = [None if each is None else each.data_ptr() for each in arrays]
    failed = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_double(eps),
        (ctypes.c_void_p * len(pointers))(*pointers),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f'not enough memory for the operator {name}')


@torch.compiler.assume_constant_result
def is_there() -> bool:
    """Whether compiled operators can be used. The first call may compile them."""
    return library()[0] is not None
