"""A feed-forward network whose layers are followed by norms."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .dropout import build_dropout
from .normed_linear import NormedLinear, PlainLinear


@MODELS.register_module()
class NormedMlp(nn.Module):
    """Linear, norm, hardswish, linear, all without biases (LeViT, ICCV 2021, section 4.2); the norm of the result is
    its block's.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after the activation and at the end. Default 0.
        norm_cfg: Token norm between. Default ``mmlape.TokenBN``.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('embed_dims', embed_dims)
        check_positive_int('hidden channels of the feed-forward network', hidden_dims)
        self.fc1 = NormedLinear(embed_dims, hidden_dims, norm_cfg=norm_cfg)
        self.fc2 = PlainLinear(hidden_dims, embed_dims, bias=False)
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """``(B, N, C)`` to the same shape."""
        return self.drop(self.fc2(self.drop(F.hardswish(self.fc1(tokens, layout)))))
