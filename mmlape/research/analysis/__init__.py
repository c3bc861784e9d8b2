"""Pictures and figures of what a model learned about position and scale.

``frame`` is what the commands share, ``loading`` finds the parts of a network and records their calls, ``drawing``
makes the pictures by the layouts of ``figures``; the other modules compute, each for some figures of the papers. Public
names are imported from here, on first use (PEP 562): Matplotlib is loaded when something is drawn.

Unless a function says otherwise, backbones are in evaluation mode, images are ``(1, 3, height, width)`` as
:func:`read_images` gives them, stages are from :func:`find_stages` (or :func:`position_stages`, :func:`dtn_stages`),
``layers`` is None for all, a number of first layers, or a list of 0-based indices, ``grid`` is ``(H, W)`` in tokens,
None for the one that a position was built for, and tokens are ``(P + H * W, C)``, P prefix tokens first.
"""

from mmlape.lazy import lazy_names

# Values of options of commands, known without importing anything.
# Norms of a block: before the attention, before the feed-forward network.
NORMS = ('norm1', 'norm2')
# Norms that others are compared with: the three of DTN (ICLR 2022), Figures 1 and 2.
COMPARED = ('LN', 'IN', 'DTN')
# Where position is added: before the attention of a layer, in the stream.
SOURCES = ('attention', 'stream')
# Fits of a Gabor position: with Gabor channels, with edge markers.
VARIANTS = {'G+E': (True, True), 'G': (True, False), 'E': (False, True)}

_PUBLIC = {
    'attention': 'AttentionDistances ClassAttention attention_distances class_attention patch_sides token_attention',
    'complexity': 'Complexity count_flops measure_complexity',
    'drawing': (
        'draw_channels draw_class_attention draw_correlations draw_distances draw_dtn_maps draw_embedding draw_flow '
        'draw_gabor_fit draw_grids draw_layers draw_magnitudes draw_patch_order draw_position_alone draw_projections '
        'draw_ratios draw_scores draw_sum draw_variation'
    ),
    'dtn': (
        'NormTokens PositionMaps Projection RatioCourse TokenVariation dtn_maps magnitude_maps norm_tokens project '
        'project_versions read_ratios token_variation variation_coefficients'
    ),
    'flow': (
        'PatchOrder PositionFlow Predictions channel_likeness patch_order position_flow read_predictions '
        'shuffle_patches split_predictions without_position'
    ),
    'gabor': 'ChannelKinds GaborFit classify_channels fit_gabor_position fit_maps',
    'loading': (
        'dtn_places dtn_stages find_images find_stages load_backbone norm_places position_stages read_images'
    ),
    'panels': 'ModelPanels',
    'position': (
        'Correlations EmbeddingTable PositionScores attention_position_stages attention_tables '
        'centre_of cosine_matrix embedding_table layer_positions pick_channels plan_sources '
        'position_correlations position_plan position_scores token_row'
    ),
    'step_memory': 'StepMemory measure_step_memory random_batch training_model training_size',
}
__getattr__, __dir__, __all__ = lazy_names(
    __name__, {module: names.split() for module, names in _PUBLIC.items()}
)
__all__ += ['NORMS']
