"""How ViT-Adapter's two streams exchange information (ICLR 2023, section 3.3): ViT tokens and the spatial pyramid."""

from __future__ import annotations

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from mmlape.checks import check_positive_int

from .deformable import DeformableAttention, SamplingPlan, Shapes


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
        self.ffn = ConvFFN(embed_dims, int(embed_dims * cffn_ratio))
        self.ffn_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()

    def forward(
        self, pyramid: Tensor, tokens: Tensor, plan: SamplingPlan, shapes: Shapes
    ) -> Tensor:
        """Pyramid ``(B, M, C)`` with level ``shapes`` samples tokens ``(B, N, C)``; returns ``(B, M, C)``."""
        pyramid = pyramid + self.attend(pyramid, tokens, plan)
        return pyramid + self.drop_path(self.ffn(self.ffn_norm(pyramid), shapes))


class ConvFFN(nn.Module):
    """Feed-forward network with a 3 x 3 depth-wise convolution per pyramid level between its two layers.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
    """

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        check_positive_int('hidden channels of the convolutional feed-forward network', hidden_dims)
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.dwconv = _DepthWise(hidden_dims)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, pyramid: Tensor, shapes: Shapes) -> Tensor:
        """``(B, M, C)`` to the same shape; ``shapes`` are (height, width) of the levels in order."""
        return self.fc2(self.act(self.dwconv(self.fc1(pyramid), shapes)))


class _DepthWise(nn.Module):
    """One depth-wise convolution, applied to every level."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, pyramid: Tensor, shapes: Shapes) -> Tensor:
        levels = pyramid.transpose(1, 2).split([height * width for height, width in shapes], dim=2)
        mixed = [
            self.dwconv(level.unflatten(2, shape)).flatten(2)
            for level, shape in zip(levels, shapes)
        ]
        return torch.cat(mixed, dim=2).transpose(1, 2)


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
