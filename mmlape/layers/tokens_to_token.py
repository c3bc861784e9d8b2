"""Tokens of overlapping patches of tokens: the stem of T2T-ViT, and the layers between its splits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int, check_rate
from mmlape.layout import Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast

from .basic import build_dropout
from .mlp import Mlp
from .stems import Stem, pad_to_multiple

# Sides of patches and steps from one to the next: of the image, then of the tokens.
_FIRST, _NEXT = (7, 4), (3, 2)
_NORM = dict(type='mmlape.LN', eps=1e-5)


@MODELS.register_module()
class TokensToToken(Stem):
    """Tokens-to-token module (T2T-ViT, ICCV 2021, section 3.1): three soft splits, of stride 16 together, with a
    transformer layer after the first and the second.

    A soft split puts the channels of overlapping patches side by side: 7 x 7 pixels with stride 4, then twice 3 x 3
    tokens with stride 2. Maps are padded with zeros at the bottom and right to multiples of the stride before each of
    them, so that every pixel is covered, and sides of 16 n pixels, on which the published code works, stay as they are.
    Parameter names are the published ones: ``attention1``, ``attention2``, ``project``.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 384.
        token_dims: Channels of tokens between splits. Default 64.
        tokens: Config of both layers, ``dict(type='mmlape.PerformerTokens')`` (default) or
            ``dict(type='mmlape.TransformerTokens')``.

    Raises:
        ValueError: If a number of channels is out of range.
    """

    stride = (16, 16)
    pads = False  # every soft split does

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 384,
        token_dims: int = 64,
        tokens: dict | None = None,
    ) -> None:
        super().__init__(in_channels)
        check_positive_int('token_dims', token_dims)
        tokens = dict(type='mmlape.PerformerTokens') if tokens is None else tokens
        first, following = in_channels * _FIRST[0] ** 2, token_dims * _NEXT[0] ** 2
        self.attention1 = MODELS.build(dict(tokens, in_channels=first, embed_dims=token_dims))
        self.attention2 = MODELS.build(dict(tokens, in_channels=following, embed_dims=token_dims))
        self.project = nn.Linear(following, embed_dims)

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        tokens, layout = soft_split(maps, *_FIRST)
        for layer in (self.attention1, self.attention2):
            tokens, layout = soft_split(layout.to_maps(layer(tokens)), *_NEXT)
        return self.project(tokens), layout


def soft_split(maps: Tensor, side: int, step: int) -> tuple[Tensor, Layout]:
    """Overlapping patches of maps ``(B, C, height, width)``, channels side by side: ``(B, H * W, C * side * side)`` and
    their layout, on the grid ``ceil(height / step)``, ``ceil(width / step)``."""
    maps = pad_to_multiple(maps, (step, step))
    layout = Layout((maps.shape[2] // step, maps.shape[3] // step))
    patches = F.unfold(maps, side, padding=(side - step + 1) // 2, stride=step)
    return patches.transpose(1, 2), layout


class TokenLayer(nn.Module, ABC):
    """A transformer layer to fewer channels: ``x = read(norm1(x));  x = x + mlp(norm2(x))``. What is read stands on the
    values, not on the tokens, which are wider.
    """

    def __init__(self, in_channels: int, embed_dims: int, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1 = build_token_norm(_NORM, check_positive_int('in_channels', in_channels))
        self.norm2 = build_token_norm(_NORM, check_positive_int('embed_dims', embed_dims))
        self.mlp = mlp

    @abstractmethod
    def read(self, tokens: Tensor) -> Tensor:
        """Attention of ``(B, N, C')`` and its shortcut, ``(B, N, C)``."""

    def forward(self, tokens: Tensor) -> Tensor:
        """``(B, N, C')`` to ``(B, N, C)``."""
        tokens = self.read(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


@MODELS.register_module()
class TransformerTokens(TokenLayer):
    """A layer of one head, of the cost of its N x N scores (T2T-ViT_t, ICCV 2021, section 3.3). As published, scores
    are divided by the square root of the channels in.

    Args:
        in_channels: Channels ``C'`` in.
        embed_dims: Channels ``C`` out.
        drop_rate: Dropout after the projection and in the feed-forward network. Default 0.
    """

    def __init__(self, in_channels: int, embed_dims: int, drop_rate: float = 0.0) -> None:
        super().__init__(in_channels, embed_dims, Mlp(embed_dims, embed_dims, drop_rate))
        self.attn = _NarrowingAttention(in_channels, embed_dims, drop_rate)

    def read(self, tokens: Tensor) -> Tensor:
        return self.attn(tokens)


class _NarrowingAttention(nn.Module):
    def __init__(self, in_channels: int, embed_dims: int, drop_rate: float) -> None:
        super().__init__()
        self.scale = in_channels**-0.5
        self.qkv = nn.Linear(in_channels, 3 * embed_dims, bias=False)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unsqueeze(1).chunk(3, dim=-1)
        read = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        return (value + self.proj_drop(self.proj(read))).squeeze(1)


@MODELS.register_module()
class PerformerTokens(TokenLayer):
    """A layer whose cost is linear in tokens: the softmax kernel by positive random features (Performer, ICLR 2021,
    eq. 7), as in T2T-ViT (ICCV 2021, section 3.3).

    Features ``exp(w x - |x|^2 / 2)`` are computed in float32 at least, under autocast too. ``w`` is drawn once,
    orthogonal rows of length ``sqrt(C / 2)``, and kept in the state dict; it is not learned.

    Args:
        in_channels: Channels ``C'`` in.
        embed_dims: Channels ``C`` out, at least 2; half as many features.
        drop_rate: Dropout after the projection and the feed-forward network. Default 0.1, as published.

    Raises:
        ValueError: If a number of channels or the rate is out of range.
    """

    eps = 1e-8
    w: Tensor

    def __init__(self, in_channels: int, embed_dims: int, drop_rate: float = 0.1) -> None:
        check_positive_int('embed_dims', embed_dims, minimum=2)
        check_rate('drop_rate', drop_rate)
        # The published names of the network's layers are their numbers.
        mlp = nn.Sequential(
            nn.Linear(embed_dims, embed_dims),
            nn.GELU(),
            nn.Linear(embed_dims, embed_dims),
            nn.Dropout(drop_rate),
        )
        super().__init__(in_channels, embed_dims, mlp)
        self.kqv = nn.Linear(in_channels, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = build_dropout('drop_rate', drop_rate)
        num_features = embed_dims // 2
        rows = nn.init.orthogonal_(torch.empty(num_features, embed_dims))
        self.register_buffer('w', rows * math.sqrt(num_features))

    def read(self, tokens: Tensor) -> Tensor:
        key, query, value = self.kqv(tokens).chunk(3, dim=-1)
        with without_autocast(tokens.device):
            keys, queries = self.features(key), self.features(query)
            summed = keys.transpose(1, 2) @ value.to(keys.dtype)
            weights = queries @ keys.sum(dim=1).unsqueeze(2)
            read = (queries @ summed) / (weights + self.eps)
        return value + self.proj_drop(self.proj(read.to(value.dtype)))

    def features(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C / 2)``, all positive."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        exponent = x @ self.w.to(x.dtype).T - x.square().sum(dim=-1, keepdim=True) / 2
        return exponent.exp() / math.sqrt(len(self.w))
