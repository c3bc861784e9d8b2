"""What a class token has been after every layer, to one class token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.registry import MODELS

from .attention import Attention
from .block import Block, Mlp


@MODELS.register_module()
class LayerClassAttention(nn.Module):
    """Layer-wise Class token Attention (CeiT, ICCV 2021, section 3.3): the class tokens of all layers are a sequence,
    with a learned embedding of their layer; after a transformer block, which neither drops paths nor has a position,
    the last one is the class token of the output.

    Args:
        embed_dims: Channels ``C``.
        num_layers: Layers ``L`` that have a class token.
        num_heads: Heads.
        hidden_dims: Channels between the layers of its feed-forward network.
        qkv_bias: Bias on queries, keys and values. Default True.
        norm_cfg: Token norm of its block. Default None, the block's.

    Shape:
        ``layer_position``: ``(1, L, C)``; it does not decay.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        num_layers: int,
        num_heads: int,
        hidden_dims: int,
        qkv_bias: bool = True,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('num_layers', num_layers)
        attn = Attention(embed_dims, num_heads, qkv_bias)
        self.block = Block(embed_dims, attn, Mlp(embed_dims, hidden_dims), norm_cfg=norm_cfg)
        table = torch.empty(1, num_layers, embed_dims)
        self.layer_position = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))

    def forward(self, tokens: Tensor) -> Tensor:
        """Class tokens ``(B, L, C)`` after each layer, the last one at the end, to ``(B, 1, C)``."""
        return self.block(tokens + self.layer_position, (1, tokens.shape[1]))[:, -1:]
