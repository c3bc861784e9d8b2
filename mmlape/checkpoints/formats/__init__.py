"""One adapter per foreign checkpoint format: which part of a model it describes, and how its names map to ours.

A new format is a class in a file of its own and a line in :data:`FORMATS`.
"""

from .base import Format, State
from .ceit import PublishedCeiT
from .compact import PublishedCompact
from .dtn import PublishedDTN
from .levit import TimmLeViT
from .openmmlab import OpenMMLabViT
from .pvt import PublishedPVT
from .swin import PublishedSwin
from .t2t import PublishedT2T
from .transformers import Transformers
from .vit import DeiT, ReferenceLaPE, Timm
from .vit_adapter import ReferenceViTAdapter

__all__ = ['FORMATS', 'Format', 'State']

FORMATS: dict[str, Format] = {
    'mmlape': Format(),
    'timm': Timm(),
    'deit': DeiT(),
    'transformers': Transformers(),
    'lape': ReferenceLaPE(),
    'pvt': PublishedPVT(),
    'dtn': PublishedDTN(),
    'swin': PublishedSwin(),
    't2t': PublishedT2T(),
    'compact': PublishedCompact(),
    'ceit': PublishedCeiT(),
    'levit': TimmLeViT(),
    'vit_adapter': ReferenceViTAdapter(),
    'mmseg': OpenMMLabViT(),
    'mmpretrain': OpenMMLabViT(),
}
