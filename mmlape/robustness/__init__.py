"""How much of a model's performance is left on corrupted images: ImageNet-C and ImageNet-R for classifiers, the same
corruptions for detectors and segmentors, on any data. See docs/robustness.md."""

from mmlape.lazy import lazy_names

# Imported on first use: its command parses options before PyTorch is imported.
__getattr__, __all__ = lazy_names(
    __name__,
    {
        'corruptions': ('CorruptImage', 'corrupt', 'image_seed'),
        'data': ('Data', 'clean', 'corrupted', 'published', 'renditions'),
        'folders': ('SubsetAccuracy', 'SynsetFolder', 'synset_labels'),
        'names': ('CORRUPTIONS', 'EXTRA', 'GROUPS', 'SEVERITIES'),
        'record': ('Record', 'identity_of', 'read_record'),
        'run': ('Cell', 'Report', 'cells_of', 'measure'),
        'scores': (
            *('ALEXNET_CLEAN_ERROR', 'ALEXNET_ERRORS', 'CLEAN', 'RENDITIONS', 'cell_key'),
            *('corruption_errors', 'headline_of', 'mean_corruption_error', 'mean_performance'),
            *('relative_corruption_errors', 'severity_means'),
        ),
        'tables': ('compare', 'describe', 'draw'),
        'timm_configs': ('timm_config',),
    },
)
