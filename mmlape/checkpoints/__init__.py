"""Weights from elsewhere (timm, DeiT, PVT, ViT-Adapter, MMSegmentation, ...), with an account of every entry.

Importing it makes MMEngine read checkpoints without running what is in them.
"""

from .convert import convert, convert_with_report
from .errors import CheckpointError
from .formats import FORMATS
from .history import allow_own_checkpoints
from .loader import register
from .pretrained import Pretrained
from .reading import read_checkpoint
from .report import LoadReport

allow_own_checkpoints()
register()

__all__ = [
    'FORMATS',
    'CheckpointError',
    'LoadReport',
    'Pretrained',
    'convert',
    'convert_with_report',
    'read_checkpoint',
]
