"""``mmlape.cpu.optimize``: which modules of a model are replaced, and when they are left alone."""

from __future__ import annotations

from collections import Counter
from logging import INFO

import torch
from mmengine.logging import print_log
from torch import nn

from mmlape.layers import basic, deformable
from mmlape.norm.dtn_maps import PlainDTN
from mmlape.runtime.private import has_hooks, is_managed_by_fsdp

from . import modules
from .build import is_wanted
from .library import library
from .linear import is_faster_here
from .memory import keep_freed_memory

_Kinds = dict[type, tuple[type[nn.Module], str]]
# Replaced by a module around it that holds no parameters either, and by one with the same parameters.
_OPERATORS: _Kinds = {
    deformable.DeformableSampling: (modules.DeformableSampling, 'deformable attention'),
    PlainDTN: (modules.DTN, 'DTN'),
}
_PRODUCTS: _Kinds = {
    nn.Linear: (modules.Linear, 'linear layers'),
    basic.PatchConv2d: (modules.PatchConv2d, 'convolutions of patches'),
}


def optimize(model: nn.Module, keep_memory: bool = True) -> nn.Module:
    """Put what is faster on a CPU into a model, in place: deformable attention and DTN in C++, products by oneDNN.

    Submodules are replaced in their parents; parameters and names in the state dict stay, so it may run before or after
    weights are loaded, the optimizer is built, or the model is wrapped (DDP, EMA). Modules with hooks, parametrizations
    or a class of their own (LoRA) are left alone. One line of the log says what was replaced: nothing if the model is
    not on a CPU, is in FSDP, or ``MMLAPE_OPS=0``.

    Args:
        model: Any module, with networks of ours in it or not.
        keep_memory: Ask glibc to keep memory that is freed, for the whole process, see
            :func:`mmlape.cpu.memory.keep_freed_memory`. Default True.

    Returns:
        The model; another object only where it is itself a module that is replaced, such as an ``nn.Linear``.
    """
    devices = {tensor.device.type for tensor in model.parameters()} - {'cpu'}
    if devices:
        _say(f'nothing to do, the model is on {", ".join(sorted(devices))}')
        return model
    if any(map(is_managed_by_fsdp, model.modules())):
        _say('nothing to do, FSDP holds the parameters')
        return model
    kinds, notes = _kinds(model)
    done: Counter[str] = Counter()
    made: dict[nn.Module, nn.Module] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) not in kinds or not _may_be_replaced(module):
            continue
        parent = model.get_submodule(path.rpartition('.')[0]) if path else None
        if isinstance(parent, modules.Operator):
            continue  # what an earlier call replaced
        if module not in made:
            kind, what = kinds[type(module)]
            made[module] = _replacement(module, kind)
            done[what] += 1
        if parent is None:
            model = made[module]
        else:
            setattr(parent, path.rpartition('.')[2], made[module])
    found = [f'{count} x {what}' for what, count in done.items()] or ['nothing replaced']
    if keep_memory and is_wanted() and keep_freed_memory():
        found.append('freed memory is kept')
    _say(', '.join([*found, *notes]))
    return model


def _kinds(model: nn.Module) -> tuple[_Kinds, list[str]]:
    """What is replaced by what on this machine, and why something is not."""
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


def _replacement(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    if type(module) in _OPERATORS:
        return kind(module)
    made = kind.__new__(kind)
    made.__dict__.update(vars(module))  # the same parameters, whoever replaces one later
    return made


def _say(text: str) -> None:
    print_log(f'mmlape.cpu.optimize: {text}', 'current', INFO)
