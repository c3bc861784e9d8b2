"""The compiled operators in this process."""

from __future__ import annotations

import ctypes
from functools import cache
from logging import INFO, WARNING
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from .build import SWITCH, BuildError, binary, build, is_wanted
from .surroundings import is_exporting, is_looked_at


@cache
def library() -> tuple[ctypes.CDLL | None, str]:
    """The compiled operators, compiled now where that was not done before, or None and why there are none.

    Raises:
        ValueError: If the environment variable ``MMLAPE_OPS`` is neither ``'0'`` (off) nor ``'1'`` (on, the default).
    """
    if not is_wanted():
        return None, f'switched off by {SWITCH}=0'
    try:
        if not binary().is_file():
            text = 'operators (attention, deformable attention, DTN) are compiled for CPUs, once per machine (seconds)'
            print_log(text, logger='current', level=INFO)
        return ctypes.CDLL(str(build())), ''
    except (BuildError, OSError) as error:
        why = str(error)
    text = f'attention, deformable or not, and DTN run on CPUs in their PyTorch form, which is slower: {why}'
    print_log(f'{text} (docs/install.md)', logger='current', level=WARNING)
    return None, why


def call(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    """The C++ function of this name for this type, float32 or float64.

    Raises:
        RuntimeError: There are no compiled operators.
    """
    core, why = library()
    if core is None:
        raise RuntimeError(f'operators for CPUs are not there: {why}')
    getattr(core, f'{name}_{str(dtype).removeprefix("torch.")}')(*arguments)


@torch.compiler.assume_constant_result
def is_there() -> bool:
    """Whether compiled operators can be used. The first call may compile them."""
    return library()[0] is not None


def is_served(tensor: Tensor) -> bool:
    """Whether the compiled operators are for this tensor, here and now.

    They are for CPUs. Files that others run (``torch.export``, ONNX, TorchScript), transforms of ``torch.func`` and
    forward derivatives take PyTorch's own operators.
    """
    if tensor.device.type != 'cpu':
        return False
    looked_at = is_exporting() if torch.compiler.is_compiling() else is_looked_at()
    return not looked_at and is_there()
