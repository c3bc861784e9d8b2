"""Blocks by ``torch.compile``: one graph for each kind of block, which all blocks of that kind share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmlape.checks import check_options
from mmlape.compatibility import numbers
from mmlape.layout import Grid, Layout

from . import private
from .recompute import keeps_statistics, recomputed
from .tracing import is_eager

# Compiled calls by kind of block and options, and of each block. ``nn.Module.compile`` keeps them in blocks; copies,
# pickles and averages (EMA) of a model lose them then, and run plain without a word.
_BY_KIND: dict[tuple, Callable] = {}
_BY_BLOCK: WeakKeyDictionary[nn.Module, tuple[bool | dict, Callable, set[int]]] = (
    WeakKeyDictionary()
)


def check_compile_blocks(value: object) -> bool | dict:
    """``value``, if it says how blocks are compiled, see :func:`run_block`.

    Raises:
        TypeError: If it is neither a boolean nor a dict.
        ValueError: If it holds what ``torch.compile`` does not take.
    """
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise TypeError(
            'compile_blocks must be True, False or a dict of arguments of torch.compile, '
            f"e.g. dict(mode='max-autotune-no-cudagraphs'), got {value!r}"
        )
    try:
        check_options(torch.compile, value)
        torch.compile(_call, **value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f'torch.compile refuses compile_blocks={value!r}: {error}') from error
    return value


def run_block(
    block: nn.Module, *args: Any, with_cp: bool = False, compile_blocks: bool | dict = False
) -> Any:
    """``block(*args)``.

    Args:
        block: A part of a network.
        args: Its arguments; tensors, layouts and plans may change in size from call to call.
        with_cp: Compute it again in the backward pass, see :func:`~mmlape.runtime.recompute.recomputed`. Default False.
        compile_blocks: Compile it, True or a dict of arguments of ``torch.compile``. The graph serves all sizes
            (``dynamic=True``, where the dict does not say otherwise) and all blocks of the same structure. A block runs
            plain inside of another graph (``torch.export``, ONNX, a compiled model), of transforms of ``torch.func``
            and of modes that count or fake operations; where FSDP holds its parameters; where it has hooks, which a
            graph would leave out; and where it is recomputed and keeps statistics. Default False.
    """
    if compile_blocks is False or not _can_compile(block, with_cp):
        return recomputed(block, *args) if with_cp else block(*args)
    compiled, sides = _compiled(block, compile_blocks)
    args = tuple(_for_a_graph(arg, sides) for arg in args)
    call = partial(compiled, block)
    if with_cp and torch.is_grad_enabled():
        return checkpoint(call, *args, use_reentrant=False)
    return call(*args)


def _for_a_graph(arg: Any, sides: set[int]) -> Any:
    if isinstance(arg, Tensor):
        return arg.contiguous()  # a graph is for one order in memory, too
    if isinstance(arg, Layout) and sides:
        sizes = {side: arg.pooled(side) for side in sides}
        return _GraphLayout(arg.grid, arg.num_prefix, arg.mask, sizes)
    return arg


@dataclass(frozen=True)
class _GraphLayout(Layout):
    """A layout whose pooled sizes are symbols of their own.

    If a size is a fraction of another one, the compiler for GPUs does not see that its square can be divided by it
    (``CantSplit``, torch 2.11).
    """

    sizes: Mapping[int, Grid] = field(default_factory=dict, repr=False, compare=False)

    def pooled(self, side: int) -> Grid:
        """Return the known size of the pooled grid, else compute it."""
        return self.sizes[side] if side in self.sizes else super().pooled(side)


def _compiled(block: nn.Module, options: bool | dict) -> tuple[Callable, set[int]]:
    """The compiled call of this kind of block, and by how many cells its parts pool a grid."""
    asked, call, sides = _BY_BLOCK.get(block, (False, _call, set()))
    if asked != options:
        given = {} if isinstance(options, bool) else options
        kind = (_structure(block), repr(sorted(given.items())))
        if kind not in _BY_KIND:
            # PyTorch makes 8 graphs of a function's code, then runs it plain. Kinds of blocks (PVT has 4, in training,
            # evaluation and autocast) would use them up, so each has code of its own.
            code = _call.__code__.replace(co_name=f'{type(block).__name__}_{len(_BY_KIND)}')
            own = FunctionType(code, globals())
            _BY_KIND[kind] = torch.compile(own, **_arguments_of_torch(**given))
        call = _BY_KIND[kind]
        pools = (getattr(part, 'pool', 1) for part in block.modules())
        sides = {side for side in pools if isinstance(side, int) and side > 1}
        _BY_BLOCK[block] = copy(options), call, sides
    return call, sides


def _arguments_of_torch(
    backend: str | Callable = 'inductor',
    dynamic: bool | None = True,
    mode: str | None = None,
    options: dict | None = None,
    **others: Any,
) -> dict:
    """Return arguments of ``torch.compile`` for all sizes.

    Where a convolution reads tokens on a grid of changing sides, compilers fail in training if they choose the layout
    of maps (``cannot determine truth value of Relational``, torch 2.11), and make a graph for each size on CPUs if they
    keep it (2.15).
    """
    if backend == 'inductor':
        of_mode = private.options_of_mode(mode, dynamic) if mode else {}
        layout = {'layout_optimization': numbers(torch.__version__) >= (2, 15)}
        options = {**layout, **of_mode, **(options or {})}
        mode = None
    return dict(others, backend=backend, dynamic=dynamic, mode=mode, options=options)


def _structure(block: nn.Module) -> tuple:
    """Return what blocks of a kind have in common: their parts and the sizes of their parameters."""
    parts = tuple((name, type(part)) for name, part in block.named_modules())
    return parts, tuple((name, value.shape) for name, value in block.named_parameters())


def _can_compile(block: nn.Module, with_cp: bool) -> bool:
    """Whether a graph will do; what rules it out is logged once."""
    if not is_eager():
        return False
    reason = None
    if private.is_managed_by_fsdp(block):
        reason = 'FSDP holds its parameters'
    elif any(map(private.has_hooks, block.modules())):
        reason = 'it has hooks'
    elif with_cp and keeps_statistics(block):
        reason = 'it is recomputed and keeps statistics'
    if reason is not None:
        _log_once(type(block).__name__, reason)
    return reason is None


@cache
def _log_once(name: str, reason: str) -> None:
    """Log each name with its reason once."""
    print_log(f'compile_blocks: {name} runs plain, since {reason}', 'current', logging.INFO)


def _call(block: nn.Module, *args: Any) -> Any:
    return block(*args)
