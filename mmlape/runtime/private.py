"""Every private name of PyTorch that mmlape uses, tested by tests/runtime/test_private.py or where it is called.

Nothing else in the package may use one: after an upgrade of PyTorch, this is the file to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = [
    'FakeTensorMode',
    'TorchDispatchMode',
    'tree_leaves',
    'tree_map_only',
    'unset_fake_temporarily',
]

ATTENTION_ON_A_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# A convolution and its gradients, as modes see them.
CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


# Whether a transform of ``torch.func`` is active: vmap, grad, jvp, ...
in_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
# How many modes intercept operators: those that count them, or ``FakeTensorMode``.
num_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def in_forward_ad() -> bool:
    """Whether forward-mode derivatives are being computed."""
    return forward_ad._current_level >= 0


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module calls more than its ``forward``: hooks of its own, or of all modules."""
    kinds = ('forward_hooks', 'forward_pre_hooks', 'backward_hooks', 'backward_pre_hooks')
    own = [getattr(module, f'_{kind}') for kind in kinds]
    return any(own) or any(getattr(nn.modules.module, f'_global_{kind}') for kind in kinds)


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


def storage_address(tensor: Tensor) -> int:
    """Address of the storage of a tensor, also of a fake one, which has no data."""
    return tensor.untyped_storage()._cdata


def compiled_package(program: Any, path: str, metadata: dict[str, str]) -> Callable[[Tensor], Any]:
    """Compile a ``torch.export`` program with AOTInductor into the package ``path`` (.pt2), and load it. PyTorch
    documents these functions under their private module."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    options = {'aot_inductor.metadata': metadata}
    aoti_compile_and_package(program, package_path=path, inductor_configs=options)
    return aoti_load_package(path)
