"""One class per foreign checkpoint format: which part of a model it describes, and how its names map to ours."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING

from mmlape.lazy import lazy_names

if TYPE_CHECKING:
    from .base import Format


class Formats(UserDict):
    """Formats by name; ``'module.Class'`` of this folder is instantiated on first use."""

    def __getitem__(self, name: str) -> Format:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, cls = found.partition('.')
            found = self[name] = getattr(import_module(f'{__name__}.{module}'), cls)()
        return found


__getattr__, __dir__, __all__ = lazy_names(__name__, {'base': ('Format', 'State')})
__all__ += ['FORMATS', 'Formats']

FORMATS = Formats(
    {
        'mmlape': 'base.Format',
        'timm': 'vit.Timm',
        'deit': 'vit.Timm',
        'transformers': 'vit.Transformers',
        'lape': 'vit.ReferenceLaPE',
        'pvt': 'published.PublishedPVT',
        'dtn': 'published.PublishedDTN',
        'swin': 'published.PublishedSwin',
        't2t': 'published.PublishedT2T',
        'compact': 'published.PublishedCompact',
        'ceit': 'published.PublishedCeiT',
        'levit': 'published.PublishedLeViT',
        'vit_adapter': 'published.ReferenceViTAdapter',
        'eomt': 'eomt.PublishedEoMT',
        'eomt_delta': 'eomt.DeltaEoMT',
        'mmseg': 'published.OpenMMLabViT',
        'mmpretrain': 'published.OpenMMLabViT',
    }
)
