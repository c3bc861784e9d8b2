"""Every private name of PyTorch that mmlape uses. tests/runtime/test_private.py has a test for each of them.

Nothing else in the package may use one: after an upgrade of PyTorch, this is the file to look at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ['FakeTensorMode', 'tree_leaves', 'unset_fake_temporarily']

ATTENTION_ON_A_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


# Whether a transform of ``torch.func`` is active: vmap, grad, jvp, ...
in_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
# How many modes intercept operators: those that count them, or ``FakeTensorMode``.
num_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def in_forward_ad() -> bool:
    """Whether forward-mode derivatives are being computed."""
    return forward_ad._current_level >= 0


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module calls more than its ``forward``: hooks of its own, or of all modules."""
    own = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(own) or nn.modules.module._has_any_global_hook()


def is_managed_by_fsdp(module: nn.Module) -> bool:
    """Whether FSDP holds the module's parameters."""
    return bool(getattr(module, '_is_fsdp_managed_module', False))


def options_of_mode(mode: str, dynamic: bool | None) -> dict:
    """Options of the compiler Inductor that a ``mode`` of ``torch.compile`` stands for. The import takes seconds."""
    from torch._inductor import list_mode_options

    return list_mode_options(mode, dynamic)


def gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    """Gradient of ``F.gelu(x, approximate=approximate)``."""
    return torch.ops.aten.gelu_backward(grad, x, approximate=approximate)


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    needed: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of ``torch.native_layer_norm`` over the last axis: of x, weight and bias, those that are needed."""
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape[-1:], mean, rstd, weight, bias, needed
    )


def softmax_backward(grad: Tensor, out: Tensor, dim: int) -> Tensor:
    """Gradient of the softmax ``out`` along ``dim``."""
    return torch._softmax_backward_data(grad, out, dim, out.dtype)


def has_onednn_linear() -> bool:
    """Whether :func:`onednn_linear` is there, and oneDNN is not switched off."""
    return (
        torch.backends.mkldnn.is_available()
        and torch._C._get_mkldnn_enabled()
        and hasattr(torch.ops.mkldnn, '_linear_pointwise')
    )


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear`` by oneDNN, of float32 on a CPU; without autograd."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'none', [], '')


def bytes_kept(model: nn.Module, call: Callable[[], object]) -> int:
    """Bytes that live after ``call`` and not before: what its result and the backward pass need, without weights."""
    with _LiveBytes(model) as live:
        kept = call()
        found = live.now
    del kept
    return found


def peak_live_bytes(model: nn.Module, call: Callable[[], object]) -> int:
    """The most bytes that live at a time during ``call`` and not before, without weights."""
    with _LiveBytes(model) as live:
        call()
    return live.most


class _LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operators made and that still live, and the most so far, without a model's own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known = {
            each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())
        }
        self._own = set(self._known)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = _computed(func, args, kwargs or {})
        if (
            func is torch.ops.aten._to_copy.default
            and args[0].untyped_storage()._cdata in self._own
        ):
            self._add(made, 0)  # of a weight, by autocast
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor, tensor.untyped_storage().nbytes())
        self.most = max(self.most, self.now)
        return made

    def _add(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.now += size
            weakref.finalize(storage, self._remove, storage._cdata, size)

    def _remove(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def compiled_package(program: Any, path: str) -> Callable[[Tensor], Any]:
    """Compile a ``torch.export`` program with AOTInductor into the package ``path`` (.pt2), and load it. PyTorch
    documents these functions under their private module."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    aoti_compile_and_package(program, package_path=path)
    return aoti_load_package(path)


def _computed(func: Any, args: tuple, kwargs: dict) -> Any:
    """Convolutions of bfloat16 in float32: 160 times faster on a CPU without instructions for them."""
    convolutions = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
    if func not in convolutions or args[0].dtype != torch.bfloat16:
        return func(*args, **kwargs)
    args, kwargs = tree_map_only(Tensor, Tensor.float, (args, kwargs))
    return tree_map_only(Tensor, Tensor.bfloat16, func(*args, **kwargs))
