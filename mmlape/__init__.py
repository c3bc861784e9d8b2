"""mmlape: position embeddings and token normalisation for MMDetection and MMSegmentation.

Its rooms are imported on first use: ``mmlape.backbones``, or ``type='mmlape.VisionTransformer'`` in a config. What
MMEngine and timm have to know of mmlape they are told as soon as both are imported, in whatever order.
"""

import logging

from . import stack
from .imports import follow, on_first_use
from .version import __version__

__getattr__, __dir__ = on_first_use(__name__)[:2]

try:
    stack.check_stack()
    follow(
        {
            'mmengine': ('mmlape.registry', 'mmlape.file_backend', 'mmlape.checkpoints.history'),
            'mmengine.runner': ('mmlape.checkpoints.loader',),
            'timm': ('mmlape.pretraining.timm_models',),
        }
    )
except (ImportError, AttributeError) as error:
    # MMEngine imports us for every `type='mmlape.X'`, swallows these two, and then says only that X is not in the
    # registry; without this line nobody would see why.
    if not stack.is_examined():  # `mmlape doctor` says it itself, with the rest
        logging.getLogger('mmlape').error('mmlape cannot be imported: %s', error)
        raise

__all__ = [
    '__version__',
    'backbones',
    'checkpoints',
    'datasets',
    'engine',
    'layers',
    'norm',
    'position',
    'pretraining',
    'registry',
    'stack',
]
