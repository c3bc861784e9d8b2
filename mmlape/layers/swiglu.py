"""A feed-forward network with a gate."""

from __future__ import annotations

from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .activation import build_activation
from .dropout import build_dropout
from .linear import Linear


@MODELS.register_module()
class SwiGLU(nn.Module):
    """``fc2(act(gate) x)`` with ``gate, x = fc1(tokens)`` (GLU Variants Improve Transformer, arXiv 2020, eq. 6), as in
    EVA-02, DINOv2's giant and DINOv3. The first half of ``fc1`` is the gate.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between, after the gate; ``fc1`` has twice as many.
        drop_rate: Dropout after the gate and at the end. Default 0.
        act: Activation of the gate, see :class:`~mmlape.layers.Mlp`. Default ``'silu'``.
        norm_cfg: Token norm before ``fc2`` (EVA-02). Default None, none.

    Raises:
        ValueError: If a size or rate is out of range, or ``act`` is unknown.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        act: str = 'silu',
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('embed_dims', embed_dims)
        check_positive_int('hidden channels of the feed-forward network', hidden_dims)
        self.fc1 = Linear(embed_dims, 2 * hidden_dims)
        self.act = build_activation(act)
        self.norm = None if norm_cfg is None else build_token_norm(norm_cfg, hidden_dims)
        self.fc2 = Linear(hidden_dims, embed_dims)
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid | None = None) -> Tensor:
        """``(B, N, C)`` to the same shape."""
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        hidden = self.drop(self.act(gate) * value)
        if self.norm is not None:
            hidden = self.norm(hidden, layout)
        return self.drop(self.fc2(hidden))
