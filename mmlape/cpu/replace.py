"""``mmlape.cpu.optimize``: which modules of a model are replaced, when they are left alone, and what replaces them: the
same parameters, other arithmetic."""

from __future__ import annotations

from collections import Counter
from logging import INFO

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmlape.layers import basic, deformable
from mmlape.layers.deformable_heads import replace_deformable_attention
from mmlape.norm.dtn_plain import DTNOptions, PlainDTN
from mmlape.runtime.private import has_hooks, is_managed_by_fsdp
from mmlape.runtime.submodules import as_class, replace_submodules
from mmlape.runtime.tracing import is_eager, is_exporting

from .build import is_wanted
from .library import deformable_sampling, dtn, is_there, library
from .linear import is_faster_here, product
from .memory import keep_freed_memory


class Linear(nn.Linear):
    """``nn.Linear`` by oneDNN."""

    product = staticmethod(product)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., C)`` to ``(..., D)``."""
        return product(x, self.weight, self.bias)


class PatchConv2d(basic.PatchConv2d):
    """A convolution of patches as a product of matrices, where maps are views of tokens. The result is one again."""

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C', H', W')`` to ``(B, C, H, W)``."""
        side = self.kernel_size[0]
        fits = maps.is_cpu and not (maps.shape[2] % side or maps.shape[3] % side)
        # Tensors of a transform have no layout to ask for.
        if not (fits and is_eager(maps) and maps.is_contiguous(memory_format=torch.channels_last)):
            return super().forward(maps)
        cells = maps.permute(0, 2, 3, 1).unflatten(2, (-1, side)).unflatten(1, (-1, side))
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        return product(cells.transpose(2, 3).flatten(3), weight, self.bias).permute(0, 3, 1, 2)


class Operator(nn.Module):
    """Base class of modules that call an operator in C++.

    Args:
        plain: The module that it replaces, for calls that the operator does not serve.
    """

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain


class DeformableSampling(Operator):
    """Deformable attention's sampling in C++."""

    def forward(
        self, value: Tensor, offsets: Tensor, logits: Tensor, plan: deformable.SamplingPlan
    ) -> Tensor:
        """See :class:`mmlape.layers.deformable.DeformableSampling`."""
        if plan.shapes is None or not _serves(value):
            return self.plain(value, offsets, logits, plan)
        shapes = [side for shape in plan.shapes for side in shape]
        return deformable_sampling(value, offsets, logits, plan.reference_points, shapes)


class DTN(Operator):
    """DTN's normalisation in C++; masks take PyTorch's."""

    def forward(
        self,
        x: Tensor,
        P_y: Tensor,
        P_x: Tensor,
        mean_ratio: Tensor,
        var_ratio: Tensor,
        weight: Tensor,
        bias: Tensor,
        options: DTNOptions,
        mask: Tensor | None = None,
    ) -> Tensor:
        """See :class:`mmlape.norm.dtn_plain.PlainDTN`."""
        tensors = (x, P_y, P_x, mean_ratio, var_ratio, weight, bias)
        if mask is not None or not _serves(x):
            return self.plain(*tensors, options, mask)
        windows, eps, stabilize = options
        return dtn(*tensors, windows=(*windows.grid, windows.pool), eps=eps, stabilize=stabilize)


def _serves(tensor: Tensor) -> bool:
    """Whether operators are for this call: on a CPU (the model may have been moved), in eager mode or a graph of
    ``torch.compile``. Exported files, transforms and modes that count operators take PyTorch's own."""
    if not tensor.is_cpu or not is_there():
        return False
    return not is_exporting() if torch.compiler.is_compiling() else is_eager(tensor)


_Kinds = dict[type, tuple[type[nn.Module], str]]
# Replaced by a module around it that holds no parameters either, and by one with the same parameters.
_OPERATORS: _Kinds = {
    deformable.DeformableSampling: (DeformableSampling, 'deformable attention'),
    PlainDTN: (DTN, 'DTN'),
}
_PRODUCTS: _Kinds = {
    nn.Linear: (Linear, 'linear layers'),
    basic.PatchConv2d: (PatchConv2d, 'convolutions of patches'),
}


def optimize(model: nn.Module, keep_memory: bool = True) -> nn.Module:
    """Put what is faster on a CPU into a model, in place: deformable attention and DTN in C++, products by oneDNN.

    Deformable attention is ViT-Adapter's, and MMCV's in pixel decoders and DETR heads. Submodules are replaced in
    their parents; parameters and names in the state dict stay, so it may run before or after weights are loaded, the
    optimizer is built, or the model is wrapped (DDP, EMA). Modules with hooks, parametrizations or a class of their own
    (LoRA) are left alone. One line of the log says what was replaced: nothing if the model is not on a CPU, is in FSDP,
    or ``MMLAPE_OPS=0``.

    Args:
        model: Any module, with networks of ours in it or not.
        keep_memory: Ask glibc to keep memory that is freed, for the whole process, see
            :func:`mmlape.cpu.memory.keep_freed_memory`. Default True.

    Returns:
        The model; another object only where it is itself a module that is replaced, such as an ``nn.Linear``.
    """
    devices = {tensor.device.type for tensor in model.parameters()} - {'cpu'}
    if devices:
        _log(f'nothing to do, the model is on {", ".join(sorted(devices))}')
        return model
    if any(map(is_managed_by_fsdp, model.modules())):
        _log('nothing to do, FSDP holds the parameters')
        return model
    if is_wanted():
        model = replace_deformable_attention(model)
    kinds, notes = _kinds(model)
    done: Counter[str] = Counter()

    def replacement(module: nn.Module) -> nn.Module | None:
        if type(module) not in kinds or not _may_be_replaced(module):
            return None
        kind, what = kinds[type(module)]
        done[what] += 1
        # The same parameters, whoever replaces one later.
        return kind(module) if type(module) in _OPERATORS else as_class(module, kind)

    # Within operators is what an earlier call replaced.
    model = replace_submodules(model, replacement, except_in=Operator)
    found = [f'{count} x {what}' for what, count in done.items()] or ['nothing replaced']
    if keep_memory and is_wanted() and keep_freed_memory():
        found.append('freed memory is kept')
    _log(', '.join([*found, *notes]))
    return model


def _kinds(model: nn.Module) -> tuple[_Kinds, list[str]]:
    """Return the classes to replace on this machine with their replacements, and why others are not replaced."""
    if not is_wanted():
        return {}, ['switched off by MMLAPE_OPS=0']
    kinds, notes = dict(_PRODUCTS), []
    if not is_faster_here():
        del kinds[nn.Linear]
    if any(type(module) in _OPERATORS for module in model.modules()):
        core, why = library()
        if core is None:
            notes.append(f'deformable attention and DTN stay in PyTorch, which is slower: {why}')
        else:
            kinds.update(_OPERATORS)
    return kinds, notes


def _may_be_replaced(module: nn.Module) -> bool:
    """Whether a call of the module runs nothing but its class's ``forward`` on ordinary parameters of float32."""
    return (
        not has_hooks(module)
        and 'forward' not in vars(module)
        and all(
            type(parameter) is nn.Parameter and parameter.dtype is torch.float32
            for parameter in module.parameters()
        )
        and 'weight' not in vars(module)  # computed by torch.nn.utils.weight_norm, or FSDP's
    )


def _log(text: str) -> None:
    print_log(f'mmlape.cpu.optimize: {text}', 'current', INFO)
