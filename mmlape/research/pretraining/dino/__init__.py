"""Self-distillation without labels (DINO, ICCV 2021) of our backbones, with MMPretrain.

A config that names its parts needs ``custom_imports = dict(imports=['mmlape.research.pretraining.dino'])``: MMPretrain
is not imported otherwise.
"""

from .head import DINOHead, DINOLoss
from .hooks import DINOGradientsHook, KNNHook, NearestNeighbours
from .model import DINO

__all__ = ['DINO', 'DINOGradientsHook', 'DINOHead', 'DINOLoss', 'KNNHook', 'NearestNeighbours']
