"""Attention, the transformer block, patch embedding, deformable interaction, spatial prior."""

import typing

from mmlape import renamed

from .attention import (
    Attention,
    AttentionLayer,
    DifferentialAttention,
    SpatialReductionAttention,
)
from .basic import NormedLinear, PatchConv2d, PlainLinear, build_map_norm, init_linear
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
from .deformable_heads import HeadDeformableAttention, replace_deformable_attention
from .long_attention import BigBirdAttention, LSHAttention
from .lora import LoRALinear, merge_lora
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


def __getattr__(name: str) -> typing.NoReturn:
    instead = renamed.RENAMED.get(rf'mmlape\.layers\.{name}')
    if instead:
        raise ImportError(f'mmlape.layers.{name} was removed; use {instead}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
