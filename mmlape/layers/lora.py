"""Low-rank changes of linear layers: LoRA (ICLR 2022) and DoRA (ICML 2024)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.runtime.autocast import without_autocast
from mmlape.runtime.submodules import replace_submodules

from .basic import PlainLinear, build_dropout


class LoRALinear(nn.Linear):
    """``W x + b + (alpha / rank) B A x``: LoRA (ICLR 2022, eq. 3), of a layer whose ``weight`` keeps its name.

    With ``dora``, rows of the sum ``V = W + (alpha / rank) B A`` have lengths of their own, ``m V / ||V||`` (DoRA,
    ICML 2024, eq. 5), whose gradient takes ``||V||`` as constant (section 4.3). ``A`` starts at random, ``B`` at 0 and
    ``m`` at ``||W||``, so that the layer starts as the plain one. Names of parameters are peft's: ``lora_A.weight``
    ``(rank, in_features)``, ``lora_B.weight`` ``(out_features, rank)``, ``lora_magnitude_vector`` ``(out_features,)``.

    Args:
        plain: The layer whose parameters this one takes over.
        rank: Columns of ``B``.
        alpha: Factor of the change, times ``rank``.
        dropout: Of what enters ``A``. Default 0.
        dora: Default False.
    """

    lora_magnitude_vector: nn.Parameter | None

    def __init__(
        self, plain: nn.Linear, rank: int, alpha: float, dropout: float = 0.0, dora: bool = False
    ) -> None:
        size = plain.in_features, plain.out_features
        super().__init__(*size, plain.bias is not None, device='meta')
        self.weight, self.bias = plain.weight, plain.bias
        self.rank, self.alpha, self.scaling = rank, alpha, alpha / rank
        self.lora_A, self.lora_B = (
            PlainLinear(size[0], rank, bias=False).to(plain.weight),
            PlainLinear(rank, size[1], bias=False).to(plain.weight),
        )
        nn.init.zeros_(self.lora_B.weight)
        self.lora_dropout = build_dropout('dropout', dropout)
        lengths = nn.Parameter(row_lengths(plain.weight.detach())) if dora else None
        self.register_parameter('lora_magnitude_vector', lengths)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., in_features)`` to ``(..., out_features)``."""
        plain = F.linear(x, self.weight, self.bias)
        change = self.lora_B(self.lora_A(self.lora_dropout(x))) * self.scaling
        lengths = self.lora_magnitude_vector
        if lengths is None:
            return plain + change
        factor, dtype = self._factor(lengths), plain.dtype
        product = plain if self.bias is None else plain - self.bias.to(dtype)
        return plain + (factor - 1).to(dtype) * product + factor.to(dtype) * change

    def merged(self) -> nn.Linear:
        """A plain layer that computes the same."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device='meta')
        with torch.no_grad():
            weight = self._sum()
            if self.lora_magnitude_vector is not None:
                weight = weight * self._factor(self.lora_magnitude_vector)[:, None]
        plain.weight, plain.bias = nn.Parameter(weight, self.weight.requires_grad), self.bias
        return plain.train(self.training)

    def _sum(self) -> Tensor:
        return self.weight + self.scaling * (self.lora_B.weight @ self.lora_A.weight)

    def _factor(self, lengths: Tensor) -> Tensor:
        """``m / ||V||`` ``(out_features,)`` for the lengths ``m``, which alone have a gradient."""
        with torch.no_grad(), without_autocast(self.weight.device):
            others = row_lengths(self._sum())
        return lengths / others

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        lengths = self.lora_magnitude_vector
        plain = (
            f'{prefix}weight' in state_dict and f'{prefix}lora_magnitude_vector' not in state_dict
        )
        if plain and lengths is not None:
            with torch.no_grad():
                lengths.copy_(row_lengths(self.weight))


def row_lengths(weight: Tensor) -> Tensor:
    """``(out_features,)`` of ``(out_features, in_features)``, above 0."""
    return torch.linalg.vector_norm(weight, dim=1).clamp_min(torch.finfo(weight.dtype).tiny)


def merge_lora(model: nn.Module) -> nn.Module:
    """Replace all :class:`LoRALinear` of a model by plain layers that compute the same, in place."""
    return replace_submodules(
        model, lambda module: module.merged() if isinstance(module, LoRALinear) else None
    )
