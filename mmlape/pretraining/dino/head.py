"""What maps features to the scores that student and teacher compare."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from mmlape.backbones.builder import init_linear
from mmlape.checks import check_bool, check_positive_int, check_type
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast


@MODELS.register_module()
class DINOHead(BaseModule):
    """A multilayer perceptron to a bottleneck, its direction, and prototypes that it is compared with (DINO, ICCV 2021,
    appendix C).

    Args:
        in_channels: Channels ``C`` of the features.
        out_channels: Prototypes ``K``. Default 65536.
        hidden_channels: Of the perceptron. Default 2048.
        bottleneck_channels: What it ends with. Default 256.
        num_layers: Its linear layers, GELU between them. Default 3.
        norm_last_layer: Prototypes keep the length 1, else their lengths are learned, from 1. Default True.
        init_cfg: MMEngine's. Default None.

    Raises:
        ValueError: If a number is less than 1.
        TypeError: If an option has the wrong type.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 65536,
        hidden_channels: int = 2048,
        bottleneck_channels: int = 256,
        num_layers: int = 3,
        norm_last_layer: bool = True,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        check_type('init_cfg', init_cfg, dict | list[dict] | None)
        super().__init__(init_cfg=init_cfg)
        self.in_channels = check_positive_int('in_channels', in_channels)
        self.out_channels = check_positive_int('out_channels', out_channels)
        check_positive_int('hidden_channels', hidden_channels)
        check_positive_int('bottleneck_channels', bottleneck_channels)
        inner = [hidden_channels] * (check_positive_int('num_layers', num_layers) - 1)
        sizes = [in_channels, *inner, bottleneck_channels]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.mlp = nn.Sequential(*layers[:-1]).apply(init_linear)
        self.last_layer = weight_norm(nn.Linear(bottleneck_channels, out_channels, bias=False))
        lengths = self.last_layer.parametrizations.weight.original0
        nn.init.ones_(lengths)
        lengths.requires_grad_(not check_bool('norm_last_layer', norm_last_layer))

    def forward(self, features: Tensor) -> Tensor:
        """Scores ``(B, K)`` of features ``(B, C)``."""
        bottleneck = self.mlp(features)
        with without_autocast(bottleneck.device):
            bottleneck = F.normalize(bottleneck.float(), dim=-1)
        return self.last_layer(bottleneck)
