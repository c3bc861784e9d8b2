"""The pre-norm transformer block."""

from __future__ import annotations

from timm.layers import DropPath, LayerScale, Mlp
from torch import Tensor, nn

from mmlape.checks import check_rate
from mmlape.norm import build_token_norm

from .attention import Attention


class Block(nn.Module):
    """``x = x + attn(norm1(x, grid) + position);  x = x + mlp(norm2(x, grid))``.

    Parameter names are timm's (``norm1``, ``attn.qkv``, ``ls1.gamma``, ``mlp.fc1``, ...).

    Args:
        embed_dims: Channels ``C``.
        num_heads: Attention heads.
        mlp_ratio: Hidden channels of the MLP in units of ``C``. Default 4.
        qkv_bias: Bias on queries, keys and values. Default True.
        window_size: See :class:`~mmlape.layers.Attention`. Default None, global.
        layer_scale: Initial value of a learned per-channel scale on both branches; None (default) for no scale.
        drop_rate: Dropout after the projection and in the MLP. Default 0.
        attn_drop_rate: Dropout of attention weights. Default 0.
        drop_path_rate: Probability of dropping a branch for one image. Default 0.
        norm_cfg: Token norm, see :func:`~mmlape.norm.build_token_norm`. Default ``mmlape.LN`` with eps 1e-6.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        window_size: int | tuple[int, int] | None = None,
        layer_scale: float | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        norm_cfg = norm_cfg or dict(type='mmlape.LN', eps=1e-6)
        check_rate('drop_path_rate', drop_path_rate)
        self.norm1 = build_token_norm(norm_cfg, embed_dims)
        self.attn = Attention(
            embed_dims, num_heads, qkv_bias, window_size, attn_drop_rate, drop_rate
        )
        self.ls1 = _layer_scale(embed_dims, layer_scale)
        self.norm2 = build_token_norm(norm_cfg, embed_dims)
        self.mlp = Mlp(embed_dims, int(embed_dims * mlp_ratio), drop=drop_rate)
        self.ls2 = _layer_scale(embed_dims, layer_scale)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()

    def forward(
        self, tokens: Tensor, grid: tuple[int, int], position: Tensor | None = None
    ) -> Tensor:
        """Transform tokens.

        Args:
            tokens: ``(B, P + H * W, C)``.
            grid: ``(H, W)``.
            position: ``(1, P + H * W, C)`` added to the normalised tokens that attention reads, or None.
        """
        normed = self.norm1(tokens, grid)
        if position is not None:
            normed = normed + position
        tokens = tokens + self.drop_path(self.ls1(self.attn(normed, grid)))
        return tokens + self.drop_path(self.ls2(self.mlp(self.norm2(tokens, grid))))


def _layer_scale(embed_dims: int, init_value: float | None) -> nn.Module:
    return nn.Identity() if init_value is None else LayerScale(embed_dims, init_value)
