"""Where automatic mixed precision stops."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A region without autocast. It costs nothing where there is none; the meta device, where shapes and costs are
    counted, knows none."""
    if device.type == 'meta' or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
