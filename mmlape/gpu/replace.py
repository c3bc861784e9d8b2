"""``mmlape.gpu.optimize``: DTN by Triton kernels, with the same parameters."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from logging import INFO

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmlape import norm
from mmlape.layout import Grid, Layout
from mmlape.norm.dtn_maps import LearnedMap
from mmlape.runtime.private import has_hooks, is_managed_by_fsdp
from mmlape.runtime.submodules import as_class, replace_submodules
from mmlape.runtime.tracing import is_exporting, is_tracing

HAS_TRITON = find_spec('triton') is not None
if HAS_TRITON:
    from .dtn import dtn, supports_width

DEVICES = ('cuda',)  # ROCm's name too


class DTN(norm.DTN):
    """DTN by Triton kernels where they support the call, else by PyTorch's operators."""

    def forward(self, tokens: Tensor, grid: Layout | Grid | None = None) -> Tensor:
        """See :meth:`mmlape.norm.DTN.forward`."""
        layout = Layout.of(tokens, grid)
        # Files that others run and transforms take PyTorch's operators.
        compiling = torch.compiler.is_compiling()
        if is_exporting() if compiling else is_tracing():
            return super().forward(tokens, layout)
        reason = _unsupported(tokens, layout)
        if reason is not None:
            if not compiling:
                _log_once(f'DTN runs in PyTorch where {reason}')
            return super().forward(tokens, layout)
        mean, var = self.ratio_mean, self.ratio_var
        sizes = [*layout.grid, self.pool, layout.num_prefix, self.num_heads]
        return dtn(
            tokens, self.positions.weight, mean.omega, var.omega, self.weight, self.bias, sizes,
            self.eps, self.stabilize, mean.value or 0.0, var.value or 0.0,
        )[0]  # fmt: skip


def _unsupported(tokens: Tensor, layout: Layout) -> str | None:
    """Why the kernels are not for this call."""
    if not HAS_TRITON:
        return 'triton is not installed'
    if layout.mask is not None:
        return 'there is a mask'
    if tokens.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f'tokens are {tokens.dtype}'
    return None if tokens.device.type in DEVICES else f'tokens are on {tokens.device.type}'


def optimize(model: nn.Module) -> nn.Module:
    """Put what is faster on a GPU into a model, in place: DTN by Triton kernels, 9 launches for 139 in a training step.

    Nobody has measured it yet, so nothing calls it by itself; ``mmlape.GpuHook`` does in a training. Parameters and
    names in the state dict stay, so it may run before or after weights are loaded, the optimizer is built, or the model
    is wrapped (DDP, EMA). Norms with hooks or a class of their own are left alone, and those with fixed positions.
    Calls with a mask, in float64 or on a CPU, exported files and transforms of ``torch.func`` take PyTorch's operators.
    There are first-order gradients only. The first call of each dtype and width compiles for some seconds. One line of
    the log says what was replaced.

    Args:
        model: Any module, with networks of ours in it or not.

    Returns:
        The model; another object only where it is itself a DTN.
    """
    if not HAS_TRITON:
        _log_once('nothing to do, triton is not installed')
        return model
    if any(map(is_managed_by_fsdp, model.modules())):
        _log_once('nothing to do, FSDP holds the parameters')
        return model
    made = 0

    def replacement(module: nn.Module) -> nn.Module | None:
        nonlocal made
        if type(module) is not norm.DTN or not _may_be_replaced(module):
            return None
        made += 1
        return as_class(module, DTN)

    model = replace_submodules(model, replacement)
    _log_once(f'{made} x DTN' if made else 'nothing replaced')
    return model


def _may_be_replaced(module: norm.DTN) -> bool:
    return (
        type(module.positions) is LearnedMap
        and supports_width(module.num_features, module.num_heads)
        and not any(map(has_hooks, module.modules()))
        and 'forward' not in vars(module)
        and all(type(parameter) is nn.Parameter for parameter in module.parameters())
    )


@cache
def _log_once(text: str) -> None:
    """Log each text once."""
    print_log(f'mmlape.gpu.optimize: {text}', 'current', INFO)
