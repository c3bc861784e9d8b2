"""Attention, the transformer block, patch embedding, deformable interaction, spatial prior."""

from .attention import Attention
from .block import Block, Mlp
from .conv_mlp import ConvMlp
from .deformable import DeformableAttention, SamplingPlan, sampling_plan
from .interaction import ConvFFN, Extractor, Injector, Interaction
from .patch_embed import PatchEmbed, pad_to_multiple
from .spatial_prior import SpatialPrior
from .spatial_reduction import SpatialReductionAttention
from .stage_embed import StageEmbed

__all__ = [
    'Attention',
    'Block',
    'ConvFFN',
    'ConvMlp',
    'DeformableAttention',
    'Extractor',
    'Injector',
    'Interaction',
    'Mlp',
    'PatchEmbed',
    'SamplingPlan',
    'SpatialPrior',
    'SpatialReductionAttention',
    'StageEmbed',
    'pad_to_multiple',
    'sampling_plan',
]
