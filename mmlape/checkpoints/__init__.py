"""Weights from elsewhere (timm, DeiT, PVT, ViT-Adapter, MMSegmentation, ...), with an account of every entry.

``import mmlape`` makes MMEngine read checkpoints without running what is in them.
"""

from mmlape.imports import on_first_use

__getattr__, __dir__, __all__ = on_first_use(
    __name__,
    {
        'conversion': ('convert', 'convert_with_report'),
        'errors': ('CheckpointError',),
        'formats': ('FORMATS',),
        'pretrained': ('Pretrained',),
        'reading': ('read_checkpoint',),
        'report': ('LoadReport',),
    },
)
