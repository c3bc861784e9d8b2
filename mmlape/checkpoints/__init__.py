"""Weights from elsewhere (timm, DeiT, PVT, ViT-Adapter, MMSegmentation, ...), with an account of every entry."""

from .convert import convert, convert_with_report
from .formats import FORMATS
from .pretrained import Pretrained
from .report import LoadReport

__all__ = ['FORMATS', 'LoadReport', 'Pretrained', 'convert', 'convert_with_report']
