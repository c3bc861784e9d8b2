"""Dropout that costs nothing where nothing is dropped."""

from __future__ import annotations

from torch import nn

from mmlape.checks import check_rate


def build_dropout(name: str, rate: float) -> nn.Module:
    """``nn.Dropout(rate)``, or ``nn.Identity()`` for a rate of 0, which is cheaper to call in every layer.

    Args:
        name: The option's name, for messages.
        rate: Probability of dropping a value, in [0, 1).

    Raises:
        TypeError: If the rate is no number.
        ValueError: If it is out of range.
    """
    return nn.Dropout(rate) if check_rate(name, rate) else nn.Identity()
