"""The head that maps features to scores, and the loss: the student predicts what the teacher says of other views."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from mmlape.checks import check_bool, check_number, check_positive_int, check_rate, check_type
from mmlape.layers import init_linear
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


@MODELS.register_module()
class DINOLoss(nn.Module):
    """Cross-entropy between the teacher's distribution of a global view and the student's of every other view (DINO,
    ICCV 2021, equation 2), with the teacher's scores centred (equation 4) and sharpened.

    The centre is a moving average of the teacher's scores over all images of all processes.

    Args:
        num_channels: Scores ``K`` of the heads.
        student_temperature: Default 0.1.
        teacher_temperature: Default 0.04; less is sharper.
        centre_momentum: How much of the centre stays in a step. Default 0.9.

    Raises:
        ValueError: If a temperature is not above 0, or the momentum not in [0, 1).
        TypeError: If an option has the wrong type.
    """

    centre: Tensor

    def __init__(
        self,
        num_channels: int,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        centre_momentum: float = 0.9,
    ) -> None:
        super().__init__()
        check_positive_int('num_channels', num_channels)
        self.student_temperature = check_number('student_temperature', student_temperature, above=0)
        self.teacher_temperature = check_number('teacher_temperature', teacher_temperature, above=0)
        self.centre_momentum = check_rate('centre_momentum', centre_momentum)
        self.register_buffer('centre', torch.zeros(num_channels))

    def forward(self, student: Tensor, teacher: Tensor) -> dict[str, Tensor]:
        """Compare, then move the centre.

        Args:
            student: Scores ``(V, B, K)`` of V views, the G global ones first.
            teacher: Scores ``(G, B, K)`` of the global views.

        Returns:
            ``loss``, the mean over the pairs of two different views, which is the sum of the teacher's entropy, in
            ``teacher_entropy``, and of how far the student is from it, in ``divergence`` (all in nats, for the log).
            A collapse shows there: entropy 0 or log(K), and no divergence.
        """
        with without_autocast(student.device):
            scores = teacher.detach().float()
            target = ((scores - self.centre) / self.teacher_temperature).log_softmax(-1)
            guess = (student.float() / self.student_temperature).log_softmax(-1)
            probability = target.exp()
            # of every global view with every view: (G, V)
            cross = -(probability.flatten(1) @ guess.flatten(1).T) / student.shape[1]
            others = ~torch.eye(*cross.shape, dtype=torch.bool, device=cross.device)
            loss = (cross * others).sum() / others.sum()
            entropy = -(probability * target).sum(-1).mean()
            self._move_centre(scores)
        return dict(loss=loss, teacher_entropy=entropy, divergence=(loss - entropy).detach())

    @torch.no_grad()
    def _move_centre(self, scores: Tensor) -> None:
        rows = scores.flatten(0, 1)
        # Batches may differ in size: the last one of an epoch does, on some processes.
        total = torch.cat([rows.sum(0), rows.new_tensor([len(rows)])])
        all_reduce(total)
        self.centre.lerp_(total[:-1] / total[-1], 1 - self.centre_momentum)
