"""Backbones: networks for dense prediction and classification, built from layers, norms and positions."""

from .adapter import AdapterBackbone, LightViTAdapter, ViTAdapter
from .base import Backbone
from .compact import CompactTransformer
from .eomt import EoMT
from .levit import LeViT
from .lora import LoRAOptions
from .network import NetworkOptions, StagedTransformer
from .position_only import freeze_all_but_position
from .pvt import PyramidVisionTransformer, PyramidVisionTransformerV2
from .sequence import SequenceTransformer
from .spec import UNSET, Parts
from .stage import Stage
from .swin import SwinTransformer
from .t2t import T2TViT
from .vit import CeiT, VisionTransformer
