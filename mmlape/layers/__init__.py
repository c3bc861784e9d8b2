"""Attention, the transformer block, patch embedding, deformable interaction, spatial prior."""

from typing import NoReturn

from .attention import Attention, AttentionLayer
from .block import Block, Mlp, StreamNormBlock
from .conv_mlp import ConvMlp
from .conv_pool_stem import ConvPoolStem
from .deformable import DeformableAttention, SamplingPlan, sampling_plan
from .interaction import Extractor, Injector, Interaction
from .patch_embed import PatchEmbed, Stem, check_image, pad_to_multiple
from .patch_merging import PatchMerging
from .pooling import SequencePooling
from .shifted_windows import ShiftedWindowAttention
from .spatial_prior import SpatialPrior, build_map_norm
from .spatial_reduction import SpatialReductionAttention
from .tokens_to_token import PerformerTokens, TokensToToken, TransformerTokens

__all__ = [
    'Attention',
    'AttentionLayer',
    'Block',
    'ConvMlp',
    'ConvPoolStem',
    'DeformableAttention',
    'Extractor',
    'Injector',
    'Interaction',
    'Mlp',
    'PatchEmbed',
    'PatchMerging',
    'PerformerTokens',
    'SamplingPlan',
    'SequencePooling',
    'ShiftedWindowAttention',
    'SpatialPrior',
    'SpatialReductionAttention',
    'Stem',
    'StreamNormBlock',
    'TokensToToken',
    'TransformerTokens',
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
