"""LaPE for networks that were trained with default joining."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmlape.checks import check_option
from mmlape.registry import MODELS

from .joining import LaPE, PositionPlan


@MODELS.register_module()
class LaPEWarmStart(LaPE):
    r"""LaPE's position branch on top of a network that was trained with default joining (DeiT, AugReg, DINOv2).

    No LaPE weights were ever published, and pre-training is expensive. LaPE itself cannot take over default-joined
    weights: its tokens start without position, so the first forward pass is already another one. Here the stem keeps
    what the weights were trained with, and each layer's attention gets the layer-adaptive position on top, through
    values that start at zero:

    .. math:: x_0 = a + \omega, \qquad x'_l = MSA_l(LN_{x,l}(x_l) + p_l), \qquad p_l = 0 \text{ at step } 0

    so the first output equals the checkpoint's to the bit, and what :math:`p_l` becomes is learned in fine-tuning. Two
    constructions:

    * ``'affine'``: :math:`p_l = \gamma_l \odot Norm(\omega) + \beta_l` with :math:`\gamma_l = \beta_l = 0`: LaPE's own
      LayerNorms, ``2 * C`` parameters per layer. Normalising once or in turn is the same at the start, and a chain
      through zeros would pass no gradient on, so every layer reads the same :math:`\omega` (the arXiv form).
    * ``'gate'``: :math:`p_l = g_l \odot \omega_{l+1}`, with :math:`\omega_{l+1} = LN_{\omega,l}(\omega_l)` as in ICCV
      eq. 11 from LayerNorms that start as usual, and a gate per channel :math:`g_l = 0`: progressive, ``3 * C`` per
      layer.

    Trained on for a short while, the two do not differ measurably (docs/position.md); the default is the smaller one.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of transformer layers ``L``.
        construction: ``'affine'`` (default) or ``'gate'``.
        layers: As in :class:`LaPE`.
        eps: Added to the variance. Default 1e-6.

    Raises:
        ValueError: If the construction is unknown, or ``layers`` is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        construction: str = 'affine',
        layers: int | Sequence[int] | None = None,
        eps: float = 1e-6,
    ) -> None:
        gated = check_option('construction', construction, ('affine', 'gate')) == 'gate'
        super().__init__(embed_dims, depth, progressive=gated, layers=layers, eps=eps)
        self.gates: nn.ModuleList | None = None
        if gated:
            self.gates = nn.ModuleList(_Gate(embed_dims) for _ in self.layers)
        else:
            for norm in self.norms:
                nn.init.zeros_(norm.get_parameter('weight'))

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with the ``stem`` of default joining and one ``attention`` entry for each layer named."""
        plan = super().forward(embedding)
        attention = list(plan.attention)
        if self.gates is not None:
            for layer, gate in zip(self.layers, self.gates):
                attention[layer] = gate(attention[layer])
        return plan._replace(stem=embedding, attention=tuple(attention))

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """The norm of ``layer``, and its gate where there is one."""
        gates = [] if self.gates is None else list(zip(self.layers, self.gates))
        return super().layer_modules(layer) + [gate for index, gate in gates if index == layer]


class _Gate(nn.Module):
    """One factor per channel, zero at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, position: Tensor) -> Tensor:
        return self.weight * position
