"""mmlape: position embeddings and token normalisation for MMDetection and MMSegmentation.

Importing it registers every component under the scope ``mmlape``.
"""

import logging

from . import stack
from .version import __version__

try:
    stack.check_stack()
    from . import (
        backbones,
        checkpoints,
        datasets,
        engine,
        layers,
        norm,
        position,
        pretraining,
        registry,
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
