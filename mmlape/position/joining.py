"""How one position embedding joins a transformer: which layers receive it, and where.

A joining method turns an embedding ``(1, N, C)`` into a :class:`PositionPlan`. All its parameters are its own, so
blocks and backbones know nothing of the method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from mmlape.checks import check_bool, check_positive_int
from mmlape.registry import MODELS


class PositionPlan(NamedTuple):
    """What is added where. Every entry is ``(1, P + H * W, C)``, or None for nothing.

    Attributes:
        stem: Added to the tokens once, before the first layer.
        stream: Per layer, added to the residual stream that enters the layer.
        attention: Per layer, added to the normalised tokens that enter its attention.
    """

    stem: Tensor | None
    stream: tuple[Tensor | None, ...]
    attention: tuple[Tensor | None, ...]


class Joining(nn.Module, ABC):
    """Turns a position embedding into a :class:`PositionPlan`.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of transformer layers ``L``.
    """

    def __init__(self, embed_dims: int, depth: int) -> None:
        super().__init__()
        self.embed_dims = check_positive_int('embed_dims', embed_dims)
        self.depth = check_positive_int('depth', depth)
        self._nothing: tuple[None, ...] = (None,) * self.depth

    @abstractmethod
    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan for an embedding of shape ``(1, P + H * W, C)``."""

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """Modules that serve layer ``layer`` alone, frozen together with that layer's block."""
        return []


@MODELS.register_module()
class DefaultJoining(Joining):
    """Adds the embedding to the tokens once, before the first layer (LaPE, ICCV 2023, eq. 2)."""

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with ``stem`` alone."""
        return PositionPlan(embedding, self._nothing, self._nothing)


@MODELS.register_module()
class LaPE(Joining):
    r"""Layer-adaptive Position Embedding (ICCV 2023, eq. 8-11).

    Tokens start without position. Each layer's attention reads
    :math:`LN_{x,l}(x_l) + LN_{\omega,l}(\omega_l)` with a LayerNorm of its own for the position, and the position is
    passed on from layer to layer: :math:`\omega_0 = \omega`, :math:`\omega_{l+1} = LN_{\omega,l}(\omega_l)`.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of transformer layers ``L``.
        progressive: True for the ICCV form above. False for the arXiv v1 form, "LaPE (sharing PE)" of ICCV Table 7,
            in which every layer normalises the same :math:`\omega`. Default True.
        num_layers: ``eta``, the number of first layers that receive the position (arXiv v1, Table 6); the others
            receive none. Default None, all of them.
        eps: Added to the variance. Default 1e-6.

    Raises:
        ValueError: If ``num_layers`` is not in 1..depth.

    It adds ``2 * C * num_layers`` parameters.
    """

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        progressive: bool = True,
        num_layers: int | None = None,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(embed_dims, depth)
        self.progressive = check_bool('progressive', progressive)
        self.num_layers = check_positive_int(
            'num_layers', self.depth if num_layers is None else num_layers, maximum=self.depth
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(self.embed_dims, eps=eps) for _ in range(self.num_layers)
        )

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with one ``attention`` entry for each of the first ``num_layers`` layers."""
        positions: list[Tensor] = []
        position = embedding
        for norm in self.norms:
            positions.append(norm(position))
            if self.progressive:
                position = positions[-1]
        attention = (*positions, *self._nothing[self.num_layers :])
        return PositionPlan(None, self._nothing, attention)

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """The LayerNorm of ``layer``."""
        return [self.norms[layer]] if layer < self.num_layers else []
