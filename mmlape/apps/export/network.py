"""A trained model as one network: pixels in, answers of fixed shapes out."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from mmengine.model import revert_sync_batchnorm
from torch import Tensor, nn
from torch.nn import functional

from mmlape.layers import merge_lora, replace_deformable_attention
from mmlape.layers.deformable import DeformableSampling
from mmlape.runtime.submodules import replace_submodules
from mmlape.training.load_image import LoadImage

from .selection import Size

# Module and network for each class of upstream's and its subclasses.
_ANSWERS = {
    'EncoderDecoder': ('segmentors', 'Segmentor'),
    'MaskFormer': ('queries', 'MaskDetector'),
    'DetectionTransformer': ('queries', 'DetrDetector'),
    'SparseRCNN': ('detectors', 'SparseDetector'),
    'TwoStageDetector': ('detectors', 'TwoStageDetector'),
    'SingleStageDetector': ('detectors', 'DenseDetector'),
}


class Network(nn.Module):
    """Network to export: the model between an image's pixels and its answer.

    Args:
        model: A trained detector of MMDetection or segmentor of MMSegmentation; changed in place.
        loader: What reads its images, if they are others than RGB of 8 bits. Default None.

    Attributes:
        outputs: Names of the answers.
        channels: Of the images, None for RGB of 8 bits.

    Raises:
        ValueError: If no network of fixed shapes is known for it, or an option of it has no counterpart in a file.
    """

    mean: Tensor | None
    std: Tensor

    def __init__(self, model: nn.Module, loader: LoadImage | None = None) -> None:
        super().__init__()
        preprocessor: Any = model.data_preprocessor
        self.answer = _answer(prepare(model))
        self.outputs: tuple[str, ...] = self.answer.outputs
        names = ('_channel_conversion', 'channel_conversion')  # MMEngine's name, MMSegmentation's
        self.is_bgr = not any(getattr(preprocessor, name, False) for name in names)
        padding = getattr(preprocessor, 'test_cfg', None) or {}  # MMSegmentation's option
        self.least: Size | None = padding.get('size')
        divisor: Any = padding.get('size_divisor') or getattr(preprocessor, 'pad_size_divisor', 1)
        self.divisor = 1 if self.least else int(divisor)
        mean, std = (getattr(preprocessor, name, None) for name in ('mean', 'std'))
        self.channels = loader and loader.channels
        if loader is not None:
            self.is_bgr = False
            mean, std = (
                torch.from_numpy(each)[:, None, None] for each in (loader.mean, loader.std)
            )
        self.register_buffer('mean', mean, persistent=False)
        self.register_buffer('std', std, persistent=False)
        self.eval()

    def forward(self, image: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Answers for ``(B, C, H, W)``, float32: RGB from 0 to 255, or what the loader reads."""
        height, width = image.shape[2], image.shape[3]
        if self.is_bgr:
            image = image.flip(1)
        if self.mean is not None:
            image = (image - self.mean) / self.std
        if self.channels is not None:  # as LoadImage does
            image = image.where(image.isfinite(), image.new_zeros(()))
        if self.least and isinstance(height, int):  # a file for any size takes none below it
            image = _padded(image, max(height, self.least[0]), max(width, self.least[1]))
        elif self.divisor > 1:
            step = self.divisor
            rows, columns = ((side + step - 1) // step * step for side in (height, width))
            image = _padded(image, rows, columns)
        found = self.answer(image, (height, width))
        # PyTorch's packages hold no named tuples.
        return tuple(found) if isinstance(found, tuple) else found


def _padded(image: Tensor, height: int, width: int) -> Tensor:
    return functional.pad(image, (0, width - image.shape[3], 0, height - image.shape[2]))


class AveragePool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` as two products, which ONNX has for maps of any size."""

    def __init__(self, plain: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        size: Any = plain.output_size
        self.size = size if isinstance(size, tuple) else (size, size)

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, C, *size)``."""
        down, across = (
            _bins(bins, side, maps) for bins, side in zip(self.size, maps.shape[2:], strict=True)
        )
        return down @ maps @ across.T


def _bins(bins: int, side: int, like: Tensor) -> Tensor:
    """The share of each of ``side`` cells in each bin, ``(bins, side)``."""
    number = torch.arange(bins, device=like.device).unsqueeze(1)
    cell = torch.arange(side, device=like.device)
    first, last = number * side // bins, ((number + 1) * side + bins - 1) // bins
    in_bin = ((cell >= first) & (cell < last)).to(like.dtype)
    return in_bin / (last - first)


def limit_boxes(model: Any, count: int) -> None:
    """Let a detector find at most ``count`` boxes in an image, in the model itself: a file computes masks for so many,
    whatever there is.

    Raises:
        ValueError: If it has no such limit.
    """
    heads = (
        getattr(model, name, None) for name in ('bbox_head', 'roi_head', 'panoptic_fusion_head')
    )
    found = False
    for part in (model, *heads):
        settings = getattr(part, 'test_cfg', None) or {}
        for name in ('max_per_img', 'max_per_image'):
            if name in settings:
                settings[name], found = min(settings[name], count), True
    if not found:
        raise ValueError(f'--max-boxes is for detectors, got a {type(model).__name__}')


def prepare(model: nn.Module) -> nn.Module:
    """Replace modules that files cannot hold, in the model itself."""
    model = replace_deformable_attention(merge_lora(revert_sync_batchnorm(model))).eval()
    for module in model.modules():
        if isinstance(module, DeformableSampling):
            module.gathers = True
    return replace_submodules(
        model,
        lambda each: AveragePool(each) if type(each) is nn.AdaptiveAvgPool2d else None,
    )


def _answer(model: nn.Module) -> Any:
    """The network for a kind of model; modules are imported with their toolbox alone."""
    for kind in type(model).__mro__:
        if kind.__name__ in _ANSWERS:
            module, name = _ANSWERS[kind.__name__]
            return getattr(import_module(f'.{module}', __package__), name)(model)
    raise ValueError(
        f'detectors and segmentors can be exported, got a model of type {type(model).__name__}'
    )
