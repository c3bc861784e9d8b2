"""What surrounds a call and decides whether it may run in another way than PyTorch's: who looks at it, and where."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def is_looked_at() -> bool:
    """Whether a graph is made of this call, or it is derived in another way than by autograd."""
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


@torch.compiler.assume_constant_result  # Dynamo would take it for true in every graph
def is_exporting() -> bool:
    """Before torch 2.7, which says so, whatever is traced may be exported."""
    known = getattr(torch.compiler, 'is_exporting', None)
    return known is None or known()


def are_plain(*tensors: Tensor) -> bool:
    """Whether tensors are of no class with operators of its own, and no mode counts or fakes operators."""
    return not torch._C._len_torch_dispatch_stack() and {type(each) for each in tensors} <= {
        Tensor,
        nn.Parameter,
    }


def are_floats_on_a_cpu(*tensors: Tensor) -> bool:
    """Whether all is computed on a CPU in float32."""
    right = all(each.is_cpu and each.dtype is torch.float32 for each in tensors)
    return right and not torch.is_autocast_enabled('cpu')


def mkl_leaves_avx512_aside() -> bool:
    """Whether PyTorch multiplies by MKL on a processor with AVX-512 that is not Intel's."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability() == 'AVX512'
        and 'GenuineIntel' not in processor()
    )


def processor() -> str:
    """Its maker, among other words."""
    known = Path('/proc/cpuinfo')
    if known.is_file():
        return known.read_text(errors='replace')[:1000]
    return os.environ.get('PROCESSOR_IDENTIFIER', '') or platform.processor()
