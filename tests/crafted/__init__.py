"""Checkpoints as strangers may make them: code in every place, damage, and weights of something else.

Each is made by a function of a :class:`Maker`, which knows the folder, the model, and the path of a canary: a file that
the payload writes when it is run.
"""

from . import code_in_pickles, code_in_texts, damage, weights  # noqa: F401  # they enter what they make
from .maker import BROKEN, CODE, CONFIGS, FINE, NO_TRAINING, UNFIT, Maker

__all__ = ['BROKEN', 'CODE', 'CONFIGS', 'FINE', 'NO_TRAINING', 'UNFIT', 'Maker']
