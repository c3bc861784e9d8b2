"""How one position embedding joins a transformer: which layers receive it, and where.

A joining method turns an embedding ``(1, N, C)`` into a :class:`~mmlape.position.PositionPlan`. All its parameters are
its own, so blocks and backbones know nothing of the method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from mmlape.checks import check_eps, check_layers, check_option, check_positive_int
from mmlape.registry import MODELS

from .decomposed import POSITION_NORMS
from .plan import PositionPlan


class Joining(nn.Module, ABC):
    """Turns a position embedding into a :class:`PositionPlan`.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of transformer layers ``L``.

    Attributes:
        num_tables: Embeddings ``K`` that it asks the position for.
        table_per_layer: Whether these are one for each layer, in order. Default False.
    """

    num_tables = 1
    table_per_layer = False
    no_weight_decay: ClassVar[tuple[str, ...]] = ('',)

    def __init__(self, embed_dims: int, depth: int) -> None:
        super().__init__()
        self.embed_dims = check_positive_int('embed_dims', embed_dims)
        self.depth = check_positive_int('depth', depth)
        self._nothing: tuple[None, ...] = (None,) * self.depth

    @abstractmethod
    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan for an embedding of shape ``(K, P + H * W, C)``."""

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
class SharedJoining(Joining):
    """Adds the same embedding to the stream before every layer (LaPE, ICCV 2023, section 4.5, "shared PE")."""

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with the same ``stream`` entry for each layer."""
        return PositionPlan(None, (embedding,) * self.depth, self._nothing, embedding)


@MODELS.register_module()
class UnsharedJoining(Joining):
    """Adds an embedding of its own to the stream before every layer (LaPE, ICCV 2023, section 4.5, "unshared PE").

    It asks the position for one table per layer. A fixed embedding has one for all: then it equals
    :class:`SharedJoining`.
    """

    table_per_layer = True

    def __init__(self, embed_dims: int, depth: int) -> None:
        super().__init__(embed_dims, depth)
        self.num_tables = self.depth

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with one ``stream`` entry for each layer, from ``(L, N, C)`` or ``(1, N, C)``."""
        return PositionPlan(None, embedding.expand(self.depth, -1, -1).split(1), self._nothing)


@MODELS.register_module()
class LaPE(Joining):
    r"""Layer-adaptive Position Embedding (ICCV 2023, eq. 8-11).

    Tokens start without position. Each layer's attention reads
    :math:`LN_{x,l}(x_l) + LN_{\omega,l}(\omega_l)` with a LayerNorm of its own for the position, and the position is
    passed on from layer to layer: :math:`\omega_0 = \omega`, :math:`\omega_{l+1} = LN_{\omega,l}(\omega_l)`.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of transformer layers ``L``.
        progressive: True for the ICCV form above. False for the arXiv v1 form, "LaPE (sharing PE)" of ICCV Table 7, in
            which every layer normalises the same :math:`\omega`. Default True.
        layers: Which layers receive the position: None (default) for all, ``eta`` for the first ``eta`` (arXiv v1,
            Table 6), or a list of 0-based indices. The others receive none.
        norm: What a layer does to its position, a row of ICCV Table 8 (arXiv v1, Table 5): ``'identity'``,
            ``'scalar_gain'``, ``'channel_gain'``, ``'channel_gain_bias'``, ``'norm'``, ``'norm_scalar_gain'``,
            ``'norm_channel_gain'``, or ``'norm_channel_gain_bias'`` (default), the LayerNorm of LaPE.
        eps: Added to the variance. Default 1e-6.

    A row of :math:`\omega` that is (nearly) constant, with a variance below ``eps``, has gradients as if it were
    centred alone: a prefix row that starts at zero is learned. Else they would grow by ``1 / sqrt(eps)`` per layer.

    Raises:
        ValueError: If ``layers`` names no layers, one twice, or one that does not exist, ``norm`` is unknown,
            or ``eps`` is not above 0.

    It adds ``2 * C`` parameters for each layer named.
    """

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        progressive: bool = True,
        layers: int | Sequence[int] | None = None,
        norm: str = 'norm_channel_gain_bias',
        eps: float = 1e-6,
    ) -> None:
        super().__init__(embed_dims, depth)
        self.progressive = progressive
        self.layers = check_layers('layers', layers, self.depth)
        make = POSITION_NORMS[check_option('norm', norm, POSITION_NORMS)]
        eps = check_eps(eps)
        self.norms = nn.ModuleList(make(self.embed_dims, eps) for _ in self.layers)

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with one ``attention`` entry for each layer named."""
        attention: list[Tensor | None] = list(self._nothing)
        position = embedding
        for layer, norm in zip(self.layers, self.norms):
            attention[layer] = normed = norm(position)
            if self.progressive:
                position = normed
        return PositionPlan(None, self._nothing, tuple(attention), position)

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """The norm of ``layer``."""
        return [norm for index, norm in zip(self.layers, self.norms) if index == layer]
