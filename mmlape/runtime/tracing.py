"""Whether a call runs now, on ordinary tensors, or something records, transforms or counts it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import private


def is_tracing() -> bool:
    """Whether this call is recorded (``torch.compile``, ``torch.export``, ``torch.jit.trace``) or transformed
    (``torch.func``, forward-mode derivatives).

    What is made then must not be cached: it belongs to the graph or ends with the transform.
    """
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or private.in_transform()
        or private.in_forward_ad()
    )


def is_eager(*tensors: Tensor) -> bool:
    """Whether this call runs now: it is not traced, no mode counts or fakes its operators, and ``tensors`` are of no
    class with operators of its own."""
    return (
        not is_tracing()
        and not private.num_dispatch_modes()
        and all(type(each) in (Tensor, nn.Parameter) for each in tensors)
    )


@torch.compiler.assume_constant_result  # Dynamo would take it for true in every graph
def is_exporting() -> bool:
    """Whether the graph that is being made goes into a file that others run. Before torch 2.7, which says so, every
    graph may."""
    known = getattr(torch.compiler, 'is_exporting', None)
    return known is None or known()
