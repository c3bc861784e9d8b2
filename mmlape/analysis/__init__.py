"""Pictures and figures of what a model learned about position and scale.

``position`` is about position embeddings and biases (LaPE, Gabor), ``dtn`` about Dynamic Token Normalization,
``attention`` about how far and where to it looks. Everything public is imported from here, and on first use:
Matplotlib is loaded when something is drawn.
"""

from typing import Any

from mmlape.lazy import lazy_names

_PUBLIC = {
    'attention.class_token': ('ClassAttention', 'class_attention'),
    'attention.distance': ('AttentionDistances', 'attention_distances'),
    'attention.drawing': ('draw_class_attention', 'draw_distances'),
    'choices': ('NORMS',),
    'complexity': ('Complexity', 'count_flops', 'measure_complexity'),
    'dtn.drawing': (
        'draw_dtn_maps',
        'draw_magnitudes',
        'draw_projections',
        'draw_ratios',
        'draw_variation',
    ),
    'dtn.maps': ('PositionMaps', 'dtn_maps'),
    'dtn.pca': ('Projection', 'project', 'project_versions'),
    'dtn.ratios': ('RatioCourse', 'read_ratios'),
    'dtn.tokens': ('NormTokens', 'magnitude_maps', 'norm_tokens', 'token_magnitudes'),
    'dtn.variation': ('TokenVariation', 'token_variation', 'variation_coefficients'),
    'images': ('find_images', 'read_images'),
    'loading': ('load_backbone',),
    'panels': ('save_figure',),
    'position.channel_kinds': ('ChannelKinds', 'classify_channels'),
    'position.correlation': (
        *('Correlations', 'LayerPosition', 'centre_of', 'correlation_map', 'cosine_matrix'),
        *('layer_positions', 'plan_sources', 'position_correlations', 'position_plan', 'token_row'),
    ),
    'position.drawing': (
        *('draw_channels', 'draw_correlations', 'draw_embedding', 'draw_gabor_fit'),
        *('draw_grids', 'draw_patch_order', 'draw_scores'),
    ),
    'position.flow': ('PositionFlow', 'channel_likeness', 'position_flow'),
    'position.flow_drawing': ('draw_flow', 'draw_layers', 'draw_position_alone'),
    'position.gabor_fit': ('GaborFit', 'fit_gabor_position', 'fit_maps'),
    'position.order': ('PatchOrder', 'patch_order', 'shuffle_patches', 'without_position'),
    'position.prediction_split': (
        *('PredictionSplit', 'compare_predictions', 'read_predictions', 'split_predictions'),
    ),
    'position.scores': (
        *('PositionScores', 'attention_position_stages', 'attention_tables', 'position_scores'),
    ),
    'position.tables': ('EmbeddingTable', 'embedding_table', 'pick_channels'),
    'stages': (
        *('dtn_places', 'dtn_stages', 'find_stages', 'norm_places', 'pick_stage'),
        'position_stages',
    ),
}
# "Stack" meant three things; the layers that follow one another on one grid are a stage.
_RENAMED = {
    'LayerStack': 'mmlape.backbones.Stage',
    'PositionStack': 'mmlape.backbones.Stage',
    'attention_position_stacks': 'mmlape.analysis.attention_position_stages',
    'find_dtn_stacks': 'mmlape.analysis.dtn_stages',
    'find_layer_stacks': 'mmlape.analysis.find_stages',
    'find_stacks': 'mmlape.analysis.position_stages',
    'pick_stack': 'mmlape.analysis.pick_stage',
}

_of_module, __all__ = lazy_names(__name__, _PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        raise AttributeError(f'mmlape.analysis.{name} is gone: write {_RENAMED[name]}')
    return _of_module(name)
