"""Pictures and figures of what a model learned about position and scale."""

from .attention_distance import AttentionDistances, attention_distances
from .attention_scores import (
    PositionScores,
    attention_position_stacks,
    attention_tables,
    position_scores,
)
from .channel_kinds import ChannelKinds, classify_channels
from .complexity import Complexity, count_flops, measure_complexity
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
    draw_scores,
)
from .drawing_dtn import (
    draw_distances,
    draw_dtn_maps,
    draw_magnitudes,
    draw_projections,
    draw_ratios,
)
from .gabor_fit import GaborFit, fit_gabor_position, fit_maps
from .images import find_images, read_images
from .layer_stacks import (
    NORMS,
    LayerStack,
    dtn_places,
    find_dtn_stacks,
    find_layer_stacks,
    norm_places,
)
from .loading import load_backbone
from .normed_tokens import NormTokens, magnitude_maps, norm_tokens, token_magnitudes
from .panels import save_figure
from .position_maps import PositionMaps, dtn_maps
from .ratio_course import RatioCourse, read_ratios
from .stacks import PositionStack, find_stacks, pick_stack
from .tables import EmbeddingTable, embedding_table, pick_channels
from .token_pca import Projection, project, project_versions

__all__ = [
    'NORMS',
    'AttentionDistances',
    'ChannelKinds',
    'Complexity',
    'Correlations',
    'EmbeddingTable',
    'GaborFit',
    'LayerPosition',
    'LayerStack',
    'NormTokens',
    'PositionMaps',
    'PositionScores',
    'PositionStack',
    'Projection',
    'RatioCourse',
    'attention_distances',
    'attention_position_stacks',
    'attention_tables',
    'centre_of',
    'classify_channels',
    'correlation_map',
    'cosine_matrix',
    'count_flops',
    'draw_channels',
    'draw_correlations',
    'draw_distances',
    'draw_dtn_maps',
    'draw_embedding',
    'draw_gabor_fit',
    'draw_grids',
    'draw_magnitudes',
    'draw_projections',
    'draw_ratios',
    'draw_scores',
    'dtn_maps',
    'dtn_places',
    'embedding_table',
    'find_dtn_stacks',
    'find_images',
    'find_layer_stacks',
    'find_stacks',
    'fit_gabor_position',
    'fit_maps',
    'layer_positions',
    'load_backbone',
    'magnitude_maps',
    'measure_complexity',
    'norm_places',
    'norm_tokens',
    'pick_channels',
    'pick_stack',
    'plan_sources',
    'position_correlations',
    'position_plan',
    'position_scores',
    'project',
    'project_versions',
    'read_images',
    'read_ratios',
    'save_figure',
    'token_magnitudes',
    'token_row',
]
