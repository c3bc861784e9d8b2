"""Pictures and figures of what a model learned about position."""

from .channel_kinds import ChannelKinds, classify_channels
from .correlation import (
    Correlations,
    LayerPosition,
    centre_of,
    correlation_map,
    cosine_matrix,
    layer_positions,
    plan_sources,
    position_correlations,
    position_plan,
    token_row,
)
from .drawing import (
    draw_channels,
    draw_correlations,
    draw_embedding,
    draw_gabor_fit,
    draw_grids,
)
from .gabor_fit import GaborFit, fit_gabor_position, fit_maps
from .loading import load_backbone
from .panels import save_figure
from .stacks import PositionStack, find_stacks, pick_stack
from .tables import EmbeddingTable, embedding_table, pick_channels

__all__ = [
    'ChannelKinds',
    'Correlations',
    'EmbeddingTable',
    'GaborFit',
    'LayerPosition',
    'PositionStack',
    'centre_of',
    'classify_channels',
    'correlation_map',
    'cosine_matrix',
    'draw_channels',
    'draw_correlations',
    'draw_embedding',
    'draw_gabor_fit',
    'draw_grids',
    'embedding_table',
    'find_stacks',
    'fit_gabor_position',
    'fit_maps',
    'layer_positions',
    'load_backbone',
    'pick_channels',
    'pick_stack',
    'plan_sources',
    'position_correlations',
    'position_plan',
    'save_figure',
    'token_row',
]
