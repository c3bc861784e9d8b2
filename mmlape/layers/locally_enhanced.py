"""The feed-forward network of CeiT, which mixes neighbours between batch norms and passes prefix tokens by."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .dropout import build_dropout
from .normed_linear import NormedLinear


@MODELS.register_module()
class LocallyEnhancedMlp(nn.Module):
    """Locally-enhanced Feed-Forward (CeiT, ICCV 2021, section 3.2): linear, 3 x 3 depthwise convolution on the grid,
    linear, each with a norm, the first two with a GELU too. Prefix tokens leave as they came.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after each activation and at the end. Default 0.
        norm_cfg: Token norm after each of the three. Default ``mmlape.TokenBN``.
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
        check_positive_int('hidden channels of the locally enhanced network', hidden_dims)
        norm_cfg = norm_cfg or dict(type='mmlape.TokenBN')
        self.fc1 = NormedLinear(embed_dims, hidden_dims, bias=True, norm_cfg=norm_cfg)
        self.conv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.norm = build_token_norm(norm_cfg, hidden_dims)
        self.fc2 = NormedLinear(hidden_dims, embed_dims, bias=True, norm_cfg=norm_cfg)
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """``(B, P + H * W, C)`` to the same shape. A mask does not stop what is padded from reaching its neighbours."""
        layout = Layout.of(tokens, layout)
        prefix, cells = layout.split(tokens)
        alone = layout.with_prefix(0)
        hidden = self.drop(F.gelu(self.fc1(cells, alone)))
        mixed = self.conv(alone.to_maps(hidden)).flatten(2).transpose(1, 2)
        hidden = self.drop(F.gelu(self.norm(mixed, alone)))
        return layout.join(prefix, self.drop(self.fc2(hidden, alone)))
