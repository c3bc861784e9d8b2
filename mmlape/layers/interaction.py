"""How ViT-Adapter's two streams exchange information (ICLR 2023, section 3.3): ViT tokens and the spatial pyramid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .conv_mlp import ConvMlp
from .deformable import DeformableAttention, SamplingPlan, Shapes
from .dropout import DropPath


class _Attending(nn.Module):
    """Normalises queries and features and lets the queries sample the features."""

    def __init__(self, embed_dims: int, num_levels: int, deform: dict) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.feat_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = DeformableAttention(embed_dims, num_levels=num_levels, **deform)

    def attend(self, query: Tensor, feature: Tensor, plan: SamplingPlan) -> Tensor:
        return self.attn(self.query_norm(query), self.feat_norm(feature), plan)


class Injector(_Attending):
    """Adds what the pyramid knows to the ViT tokens, scaled by a vector that starts at zero (eq. 1).

    Args:
        embed_dims: Channels ``C``.
        deform: Options of :class:`DeformableAttention` (``num_heads``, ``num_points``, ``value_proj_ratio``).
    """

    def __init__(self, embed_dims: int, deform: dict) -> None:
        super().__init__(embed_dims, 3, deform)
        self.gamma = nn.Parameter(torch.zeros(embed_dims))

    def forward(self, tokens: Tensor, pyramid: Tensor, plan: SamplingPlan) -> Tensor:
        """``(B, N, C)`` tokens sample the pyramid ``(B, M, C)``; returns ``(B, N, C)``."""
        return tokens + self.gamma * self.attend(tokens, pyramid, plan)


class Extractor(_Attending):
    """Lets the pyramid sample the ViT tokens, then mixes it by a convolutional feed-forward network (eq. 2, 3).

    Args:
        embed_dims: Channels ``C``.
        deform: Options of :class:`DeformableAttention`.
        cffn_ratio: Hidden channels of the feed-forward network in units of ``C``. Default 0.25.
        drop_path_rate: Stochastic depth of the feed-forward branch. Default 0.
    """

    def __init__(
        self,
        embed_dims: int,
        deform: dict,
        cffn_ratio: float = 0.25,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(embed_dims, 1, deform)
        self.ffn = ConvMlp(embed_dims, int(embed_dims * cffn_ratio))
        self.ffn_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()

    def forward(
        self, pyramid: Tensor, tokens: Tensor, plan: SamplingPlan, shapes: Shapes
    ) -> Tensor:
        """Pyramid ``(B, M, C)`` with level ``shapes`` samples tokens ``(B, N, C)``; returns ``(B, M, C)``."""
        pyramid = pyramid + self.attend(pyramid, tokens, plan)
        return pyramid + self.drop_path(self.ffn(self.ffn_norm(pyramid), shapes))


class Interaction(nn.Module):
    """One exchange: inject into the tokens, run some ViT layers, extract back into the pyramid.

    Args:
        embed_dims: Channels ``C``.
        deform: Options of :class:`DeformableAttention`.
        num_extra_extractors: Further extractors after the first (two after the last interaction). Default 0.
        **extractor: Options of :class:`Extractor`.
    """

    def __init__(
        self, embed_dims: int, deform: dict, num_extra_extractors: int = 0, **extractor
    ) -> None:
        super().__init__()
        self.injector = Injector(embed_dims, deform)
        self.extractor = Extractor(embed_dims, deform, **extractor)
        self.extra_extractors: nn.ModuleList | None = None
        if num_extra_extractors:
            self.extra_extractors = nn.ModuleList(
                Extractor(embed_dims, deform, **extractor) for _ in range(num_extra_extractors)
            )

    def extractors(self) -> list[Extractor]:
        """All extractors in the order in which they run."""
        return [self.extractor, *(self.extra_extractors or ())]
