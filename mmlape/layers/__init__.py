"""Attention, the transformer block, patch embedding, deformable interaction, spatial prior."""

from typing import NoReturn

from .attention import Attention, AttentionLayer
from .attention_subsampling import AttentionSubsampling
from .bigbird import BigBirdAttention
from .block import Block, Mlp, ParallelBlock, PostNormBlock, StreamNormBlock
from .conv_mlp import ConvMlp
from .conv_pool_stem import ConvPoolStem
from .conv_stem import ConvStem
from .deformable import DeformableAttention, SamplingPlan, sampling_plan
from .image_to_tokens import ImageToTokens
from .interaction import Extractor, Injector, Interaction
from .layer_attention import LayerClassAttention
from .locally_enhanced import LocallyEnhancedMlp
from .normed_linear import NormedLinear, PlainLinear
from .normed_mlp import NormedMlp
from .patch_embed import PatchEmbed, Stem, check_image, pad_to_multiple
from .patch_merging import PatchMerging
from .pooling import AttentionPooling, SequencePooling
from .reformer import LSHAttention
from .several_branches import SeveralBranchesBlock
from .shifted_windows import ShiftedWindowAttention
from .spatial_prior import SpatialPrior, build_map_norm
from .spatial_reduction import SpatialReductionAttention
from .swiglu import SwiGLU
from .token_embed import TokenEmbed
from .tokens_to_token import PerformerTokens, TokensToToken, TransformerTokens
from .wide_values import WideValueAttention

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
