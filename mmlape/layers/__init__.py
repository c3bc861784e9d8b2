"""Attention, the transformer block, patch embedding, deformable interaction, spatial prior."""

from .attention import (
    Attention,
    AttentionLayer,
    DifferentialAttention,
    SpatialReductionAttention,
)
from .basic import (
    NormedLinear,
    PatchConv2d,
    PlainLinear,
    build_map_norm,
    fast_memory_format,
    init_linear,
)
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
