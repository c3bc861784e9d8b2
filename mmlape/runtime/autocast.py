"""Where automatic mixed precision stops, and where it casts once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A region without autocast. It costs nothing where there is none; the meta device, where shapes and costs are
    counted, knows none."""
    if device.type == 'meta' or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def cast_once(tokens: Tensor) -> Tensor:
    """``tokens`` as autocast casts them for each layer that reads them: for several layers in a row, do it once."""
    kind = tokens.device.type
    if kind == 'meta' or tokens.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return tokens
    return tokens.to(torch.get_autocast_dtype(kind))
