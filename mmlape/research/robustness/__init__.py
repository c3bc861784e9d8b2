"""How much of a model's performance is left on corrupted images: ImageNet-C and ImageNet-R for classifiers, the same
corruptions for detectors and segmentors, on any data. See docs/robustness.md."""

from mmlape.lazy import lazy_names

# Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (ICLR 2019).
GROUPS = {
    'noise': ('gaussian_noise', 'shot_noise', 'impulse_noise'),
    'blur': ('defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur'),
    'weather': ('snow', 'frost', 'fog', 'brightness'),
    'digital': ('contrast', 'elastic_transform', 'pixelate', 'jpeg_compression'),
}
CORRUPTIONS = tuple(name for names in GROUPS.values() for name in names)
# For choosing hyperparameters: no part of the benchmark's mean.
EXTRA = ('speckle_noise', 'gaussian_blur', 'spatter', 'saturate')
SEVERITIES = (1, 2, 3, 4, 5)

_PUBLIC = {
    'corruptions': 'CorruptImage corrupt image_seed',
    'data': 'Data clean corrupted published renditions timm_config',
    'folders': 'SubsetAccuracy SynsetFolder synset_labels',
    'run': 'Cell Report cells_of measure',
    'scores': (
        'ALEXNET_CLEAN_ERROR ALEXNET_ERRORS CLEAN RENDITIONS Record cell_key corruption_errors headline_of identity_of '
        'mean_corruption_error mean_performance read_record relative_corruption_errors severity_means'
    ),
    'tables': 'compare describe draw',
}
__getattr__, __dir__, __all__ = lazy_names(
    __name__, {module: names.split() for module, names in _PUBLIC.items()}
)
__all__ += ['CORRUPTIONS', 'EXTRA', 'GROUPS', 'SEVERITIES']
