"""How much of a model's performance is left on corrupted images: ImageNet-C and ImageNet-R for classifiers, the same
corruptions for detectors and segmentors, on any data. See docs/robustness.md."""

from .corruptions import (
    CORRUPTIONS,
    EXTRA,
    GROUPS,
    SEVERITIES,
    CorruptImage,
    corrupt,
    image_seed,
)
from .data import Data, clean, corrupted, published, renditions
from .folders import SubsetAccuracy, SynsetFolder, synset_labels
from .record import Record, identity_of, read_record
from .run import Cell, Report, cells_of, measure
from .scores import (
    ALEXNET_CLEAN_ERROR,
    ALEXNET_ERRORS,
    CLEAN,
    RENDITIONS,
    cell_key,
    corruption_errors,
    headline_of,
    mean_corruption_error,
    mean_performance,
    relative_corruption_errors,
    severity_means,
)
from .tables import compare, describe, draw
from .timm_config import timm_config

__all__ = [
    'ALEXNET_CLEAN_ERROR',
    'ALEXNET_ERRORS',
    'CLEAN',
    'CORRUPTIONS',
    'EXTRA',
    'GROUPS',
    'RENDITIONS',
    'SEVERITIES',
    'Cell',
    'CorruptImage',
    'Data',
    'Record',
    'Report',
    'SubsetAccuracy',
    'SynsetFolder',
    'cell_key',
    'cells_of',
    'clean',
    'compare',
    'corrupt',
    'corrupted',
    'corruption_errors',
    'describe',
    'draw',
    'headline_of',
    'identity_of',
    'image_seed',
    'mean_corruption_error',
    'mean_performance',
    'measure',
    'published',
    'read_record',
    'relative_corruption_errors',
    'renditions',
    'severity_means',
    'synset_labels',
    'timm_config',
]
