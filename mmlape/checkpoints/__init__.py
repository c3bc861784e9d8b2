"""Weights from elsewhere (timm, DeiT, PVT, ViT-Adapter, MMSegmentation, ...) in our models: every entry is accounted for."""

from .convert import convert, convert_with_report
from .formats import FORMATS
from .pretrained import Pretrained
from .report import LoadReport

__all__ = ['FORMATS', 'LoadReport', 'Pretrained', 'convert', 'convert_with_report']
