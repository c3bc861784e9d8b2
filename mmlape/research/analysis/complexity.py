"""Parameters and multiply-adds of detectors and segmentors, without computing more than heads that read values."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.model import BaseModel, BaseModule, revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from mmlape.backbones import EoMT
from mmlape.runtime.private import (
    ATTENTION_ON_A_CPU,
    FakeTensorMode,
    unset_fake_temporarily,
)

__all__ = ['IMAGE_SIZES', 'Complexity', 'count_flops', 'measure_complexity']

# (height, width) at which figures are usually published, by scope.
IMAGE_SIZES = {'mmdet': (800, 1280), 'mmseg': (512, 512)}
# MMDetection 2's counter, behind most published figures, sends these through the second stage.
NUM_PROPOSALS = 1000
NUM_MASKS = 100
# Bilinear sampling reads four values per output value; one more multiply-add weights it.
_SAMPLING_FLOPS = 2 * (4 + 1)


class Complexity(NamedTuple):
    """Size and cost of a model; FLOPs are multiply-adds, as published figures count them."""

    parameters: int  #: Of the whole model as it is trained, auxiliary heads included.
    backbone_parameters: int  #: Of its backbone.
    flops: int  #: Of one image at inference.
    backbone_flops: int  #: Of its backbone.
    image_size: tuple[int, int]  #: (height, width) of that image.


def measure_complexity(config: Config, image_size: tuple[int, int] | None = None) -> Complexity:
    """Count a config's model: nothing is computed, tensors have shapes alone (but in heads of Mask2Former and DETR).

    Counted are convolutions, matrix products, attention (both products, within windows where it has some) and
    deformable attention's sampling; not counted are norms, activations, softmax, resizing and additions, so LaPE, which
    is norms and additions, adds nothing. Second stages get 1,000 proposals and, for masks, 100 boxes; Sparse R-CNN
    has its own number of proposals. RoIAlign, box decoding and suppression are left out; a segmentor is counted on one
    crop, without its auxiliary head, and EoMT after annealing, without masks.

    Args:
        config: Of a detector or segmentor of MMDetection or MMSegmentation.
        image_size: (height, width); default 800 x 1280 for detectors, 512 x 512 for segmentors.

    Raises ValueError if the config's ``default_scope`` is neither ``'mmdet'`` nor ``'mmseg'``."""
    scope = config.get('default_scope')
    if scope not in IMAGE_SIZES:
        raise ValueError(f"default_scope must be 'mmdet' or 'mmseg' to be measured, got {scope!r}")
    height, width = image_size or IMAGE_SIZES[scope]
    import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope(scope):
        model = revert_sync_batchnorm(MODELS.build(copy.deepcopy(config.model))).eval()
    if isinstance(model.backbone, EoMT):
        model.backbone.set_mask_probs([0.0] * model.backbone.num_blocks)
    with count_flops() as counter:
        maps = model.backbone(torch.empty(1, 3, height, width))
        backbone_flops = _multiply_adds(counter)
        _run_heads(model, maps, (height, width))
    return Complexity(
        parameters=_count(model),
        backbone_parameters=_count(model.backbone),
        flops=_multiply_adds(counter),
        backbone_flops=backbone_flops,
        image_size=(height, width),
    )


@contextmanager
def count_flops() -> Iterator[FlopCounterMode]:
    """PyTorch's counter (two FLOPs per multiply-add) over tensors without values.

    It also counts the CPU's attention kernel and bilinear sampling, which PyTorch's leaves out."""
    counter = FlopCounterMode(
        display=False,
        custom_mapping={
            ATTENTION_ON_A_CPU: _attention_flops,
            torch.ops.aten.grid_sampler_2d: _sampling_flops,
        },
    )
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), counter:
        yield counter


def _run_heads(model: BaseModel, maps: Any, size: tuple[int, int]) -> None:
    """Run what follows the backbone at inference."""
    if getattr(model, 'with_neck', False):
        maps = model.neck(maps)
    if hasattr(model, 'forward_transformer'):
        _run_detr(model, maps, size)
        return
    head = getattr(model, 'decode_head', getattr(model, 'panoptic_head', None))
    if hasattr(head, 'transformer_decoder'):
        _run_mask_head(head, maps)
        return
    if head is not None:
        head(maps)
        return
    if not hasattr(model, 'roi_head'):
        model.bbox_head(maps)
        return
    roi_head = model.roi_head
    if hasattr(roi_head, 'proposal_feature_channel'):
        _run_sparse_heads(roi_head, model.rpn_head.num_proposals)
        return
    model.rpn_head(maps)
    if getattr(roi_head, 'with_semantic', False):
        roi_head.semantic_head(maps)
    _run_roi_heads(roi_head.bbox_head, roi_head.bbox_roi_extractor, NUM_PROPOSALS)
    if roi_head.with_mask:
        _run_roi_heads(roi_head.mask_head, roi_head.mask_roi_extractor, NUM_MASKS)


def _run_mask_head(head: BaseModule, maps: Sequence[Tensor]) -> None:
    """Mask2Former's, which reads values of tensors: it is computed, on maps of zeros."""
    with unset_fake_temporarily():
        head([torch.zeros(each.shape) for each in maps], [BaseDataElement()])


def _run_detr(model: BaseModel, maps: Sequence[Tensor], size: tuple[int, int]) -> None:
    """Encoder, decoder and head of the DETR family, which read sizes from tensors: they are computed likewise."""
    sample = BaseDataElement(metainfo=dict(batch_input_shape=size, img_shape=size))
    with unset_fake_temporarily():
        found = model.forward_transformer([torch.zeros(each.shape) for each in maps], [sample])
        model.bbox_head(**found)


def _run_roi_heads(heads: BaseModule, extractors: BaseModule, count: int) -> None:
    """Run one head, or those of a cascade, on features as RoIAlign returns them."""
    if not isinstance(heads, nn.ModuleList):
        heads, extractors = [heads], [extractors]
    found: Any = ()
    for head, extractor in zip(heads, extractors):
        size = extractor.roi_layers[0].output_size
        # HTC's mask heads get the features of the head before.
        features = found[1:] if getattr(head, 'with_conv_res', False) else ()
        found = head(torch.empty(count, extractor.out_channels, *size), *features)


def _run_sparse_heads(roi_head: BaseModule, count: int) -> None:
    """The stages of Sparse R-CNN, which has its own number of proposals and learns them."""
    channels = roi_head.proposal_feature_channel
    for head, extractor in zip(roi_head.bbox_head, roi_head.bbox_roi_extractor):
        size = extractor.roi_layers[0].output_size
        head(torch.empty(count, channels, *size), torch.empty(1, count, channels))


def _attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_, **__) -> int:
    return sdpa_flop_count(query, key, value)


def _sampling_flops(*_, out_shape: torch.Size, **__) -> int:
    return _SAMPLING_FLOPS * math.prod(out_shape)


def _multiply_adds(counter: FlopCounterMode) -> int:
    return counter.get_total_flops() // 2


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
