"""Activations of feed-forward networks by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from timm.layers.activations import QuickGELU
from torch import nn

from mmlape.checks import check_option

# 'gelu_tanh' is what SigLIP, 'quick_gelu' what OpenAI's CLIP was trained with.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    'gelu': nn.GELU,
    'gelu_tanh': partial(nn.GELU, approximate='tanh'),
    'quick_gelu': QuickGELU,
    'relu': nn.ReLU,
    'silu': nn.SiLU,
}


def build_activation(name: str) -> nn.Module:
    """The activation of this name.

    Raises:
        ValueError: If there is none.
    """
    return ACTIVATIONS[check_option('act', name, ACTIVATIONS)]()
