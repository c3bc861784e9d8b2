"""Corruptions by their names: of ImageNet-C and of the package ``imagecorruptions``."""

__all__ = ['CORRUPTIONS', 'EXTRA', 'GROUPS', 'SEVERITIES']

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
