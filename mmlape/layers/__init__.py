"""Attention, the transformer block, patch embedding, deformable interaction, spatial prior."""

from typing import NoReturn

from .attention import Attention, AttentionLayer, SpatialReductionAttention
from .basic import NormedLinear, PlainLinear, build_map_norm
from .block import Block, ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock
from .deformable import (
    DeformableAttention,
    Extractor,
    Injector,
    Interaction,
    SamplingPlan,
    SpatialPrior,
    sampling_plan,
)
from .long_attention import BigBirdAttention, LSHAttention
from .mlp import ConvMlp, LocallyEnhancedMlp, Mlp, NormedMlp, SwiGLU
from .pooling import AttentionPooling, LayerClassAttention, SequencePooling
from .stems import (
    ConvPoolStem,
    ConvStem,
    ImageToTokens,
    PatchEmbed,
    PatchMerging,
    Stem,
    TokenEmbed,
    check_image,
    pad_to_multiple,
)
from .tokens_to_token import PerformerTokens, TokensToToken, TransformerTokens
from .windows import AttentionSubsampling, ShiftedWindowAttention, WideValueAttention

__all__ = [
    'Attention',
    'AttentionLayer',
    'AttentionPooling',
    'AttentionSubsampling',
    'BigBirdAttention',
    'Block',
    'ConvMlp',
    'ConvPoolStem',
    'ConvStem',
    'DeformableAttention',
    'Extractor',
    'ImageToTokens',
    'Injector',
    'Interaction',
    'LSHAttention',
    'LayerClassAttention',
    'LocallyEnhancedMlp',
    'Mlp',
    'NormedLinear',
    'NormedMlp',
    'ParallelBlock',
    'PatchEmbed',
    'PatchMerging',
    'PerformerTokens',
    'PlainLinear',
    'PostNormBlock',
    'SamplingPlan',
    'SequencePooling',
    'SeveralBranchesBlock',
    'ShiftedWindowAttention',
    'SpatialPrior',
    'SpatialReductionAttention',
    'Stem',
    'StreamNormBlock',
    'SwiGLU',
    'TokenEmbed',
    'TokensToToken',
    'TransformerTokens',
    'WideValueAttention',
    'build_map_norm',
    'check_image',
    'pad_to_multiple',
    'sampling_plan',
]
_RENAMED = {
    'ConvFFN': 'ConvMlp(embed_dims, hidden_dims)',
    'StageEmbed': "PatchEmbed(in_channels, embed_dims, kernel_size, stride, dict(type='mmlape.LN', eps=1e-5))",
}


def __getattr__(name: str) -> NoReturn:
    if name in _RENAMED:
        raise ImportError(f'mmlape.layers.{name} is no more: write {_RENAMED[name]}')
    raise AttributeError(f'mmlape.layers has no {name!r}')
