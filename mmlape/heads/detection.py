"""Mask2Former's head and the Hungarian matching of MMDetection, for mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmdet.models.dense_heads import Mask2FormerHead as UpstreamHead
from mmdet.models.task_modules.assigners import HungarianAssigner as UpstreamAssigner
from mmengine.structures import InstanceData
from torch import Tensor

from mmlape.checks import check_options
from mmlape.registry import MODELS, TASK_UTILS
from mmlape.runtime.autocast import without_autocast


@TASK_UTILS.register_module()
class HungarianAssigner(UpstreamAssigner):
    """MMDetection's one-to-one matching of predictions and ground truth, with costs in float32.

    In float32, assignments are MMDetection's. Under autocast its costs are sums in half precision: in float16, the
    mask cost of 12,544 points is infinite above a mean cross-entropy of 65504 / 12544 = 5.2, and SciPy ends with "cost
    matrix is infeasible". For Mask2Former and every head with a ``train_cfg.assigner`` of this kind (DETR, DINO, ...).

    Args:
        match_costs: Configs of the costs that are added up, or one of them.

    Raises:
        TypeError: If ``match_costs`` has another type.
        ValueError: If there is no cost.
        FloatingPointError: From ``assign``, if a cost is NaN or infinite: names it.
    """

    match_costs: list[Any]

    def __init__(self, match_costs: Sequence[dict] | dict) -> None:
        check_options(HungarianAssigner, dict(match_costs=match_costs))
        if not match_costs:
            raise ValueError(f'match_costs must have at least one cost, got {match_costs!r}')
        super().__init__(match_costs)
        self.match_costs = [_Float32Sum(self.match_costs)]


class _Float32Sum:
    """The sum of several costs, as one cost."""

    def __init__(self, costs: Sequence[Any]) -> None:
        self.costs = costs

    @torch.no_grad()
    def __call__(
        self, pred_instances: InstanceData, gt_instances: InstanceData, img_meta: dict | None = None
    ) -> Tensor:
        """Costs ``(predictions, ground truths)``; FloatingPointError if one is not finite."""
        predicted, truth = _in_float32(pred_instances), _in_float32(gt_instances)
        with without_autocast(truth.labels.device):
            costs = torch.stack([cost(predicted, truth, img_meta) for cost in self.costs])
        total = costs.sum(dim=0)
        if not total.isfinite().all():
            raise FloatingPointError(self._explain(costs, predicted))
        return total

    def _explain(self, costs: Tensor, predicted: InstanceData) -> str:
        wrong = [
            f'{type(cost).__name__} in {_non_finite(value)} of {value.numel()} values'
            for cost, value in zip(self.costs, costs, strict=True)
            if _non_finite(value)
        ]
        inputs = [
            f'{name} in {_non_finite(value)} of {value.numel()}'
            for name, value in predicted.items()
            if isinstance(value, Tensor) and _non_finite(value)
        ]
        cause = f'so are predicted {", ".join(inputs)}' if inputs else 'the predictions are finite'
        return (
            f'costs of the matching are NaN or infinite: {", ".join(wrong) or "the sum"}; {cause}'
        )


def _non_finite(value: Tensor) -> int:
    return int((~value.isfinite()).sum())


def _in_float32(instances: InstanceData) -> InstanceData:
    """Convert tensors of half precision to float32; keep others, and MMDetection's masks and boxes, as they are."""
    return instances.new(
        **{
            name: value.float()
            if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
            else value
            for name, value in instances.items()
        }
    )


class Float32Losses:
    """Mixin for subclasses of MMDetection's MaskFormerHead and Mask2FormerHead: matching and losses in float32.

    Upstream computes them in the type of the predictions. The divisor of the mask loss is the masks of a batch times
    12,544 points: in float16, six masks make it infinite, and the mask loss 0 or NaN, without an error.
    """

    def _loss_by_feat_single(
        self, cls_scores: Tensor, mask_preds: Tensor, *args: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        # For each layer of the decoder by itself: only one at a time has a copy of its masks in float32.
        upstream: Any = super()
        with without_autocast(cls_scores.device):
            return upstream._loss_by_feat_single(cls_scores.float(), mask_preds.float(), *args)


@MODELS.register_module()
class Mask2FormerHead(Float32Losses, UpstreamHead):
    """MMDetection's Mask2Former head (CVPR 2022) with its options and weights; matching and losses are in float32.

    Without autocast it computes what MMDetection's does.
    """
