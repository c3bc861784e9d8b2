"""What a network notices of the order of patches: without position, nothing."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor, nn

from mmlape.analysis.results import Result
from mmlape.analysis.stages import find_stages
from mmlape.layout import Grid


@dataclass(frozen=True)
class PatchOrder(Result):
    """Tokens of an image beside those of the same image with its patches in another order.

    Attributes:
        grid: ``(H, W)``.
        order: ``(H * W,)``: at place ``n`` of the shuffled image lies patch ``order[n]`` of the image.
        image: ``(height, width)``, the mean of its channels.
        shuffled: The shuffled one.
        differences: ``(layers, H, W)``: of each patch, wherever it lies, ``|after - before| / |before|`` after each
            layer. All zero if the layers are permutation equivariant.
    """

    grid: Grid
    order: np.ndarray
    image: np.ndarray
    shuffled: np.ndarray
    differences: np.ndarray


def shuffle_patches(image: Tensor, patch_size: tuple[int, int], order: Tensor) -> Tensor:
    """Put the patches of images ``(B, 3, height, width)`` into another order.

    Args:
        image: Sides that are multiples of the patch.
        patch_size: Height and width.
        order: ``(H * W,)``: what lies at each place afterwards.
    """
    height, width = patch_size
    rows = image.unfold(2, height, height).unfold(3, width, width)  # (B, 3, H, W, height, width)
    mixed = rows.flatten(2, 3)[:, :, order].unflatten(2, rows.shape[2:4])
    return mixed.permute(0, 1, 2, 4, 3, 5).reshape(image.shape)


def patch_order(backbone: nn.Module, image: Tensor, seed: int = 0) -> PatchOrder:
    """Run a network on an image and on its shuffled patches, and compare each patch's tokens, layer by layer.

    Args:
        backbone: In evaluation mode, of one stage, whose tokens are patches: ``mmlape.VisionTransformer`` or what is
            built like it.
        image: ``(1, 3, height, width)``, see :func:`~mmlape.analysis.read_images`; what is more than whole patches is
            cut off to the right and below.
        seed: Of the order. Default 0.

    Raises:
        ValueError: If tokens of the network are not patches of the image, or the image holds less than two.
    """
    patch = getattr(backbone, 'patch_size', None)
    if patch is None or len(find_stages(backbone)) != 1:
        raise ValueError(
            f'tokens of {type(backbone).__name__} are not the patches of an image, which could be put into another '
            'order: give a network of one stage with a patch embedding, e.g. mmlape.VisionTransformer'
        )
    grid = image.shape[2] // patch[0], image.shape[3] // patch[1]
    number = grid[0] * grid[1]
    if number < 2:
        raise ValueError(f'the image must hold two patches of {patch} at least, got {grid}')
    image = image[:, :, : grid[0] * patch[0], : grid[1] * patch[1]]
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    shuffled = shuffle_patches(image, patch, order)
    with torch.no_grad():
        differences = [
            _difference(before, after, number, order).reshape(grid)
            for before, after in zip(_walk(backbone, image), _walk(backbone, shuffled))
        ]
    return PatchOrder(
        grid=grid,
        order=order.numpy(),
        image=image[0].mean(0).numpy(),
        shuffled=shuffled[0].mean(0).numpy(),
        differences=torch.stack(differences).numpy(),
    )


def without_position(config: Config) -> Config:
    """The same config with no position embedding, none inside the attention, and nothing to join."""
    config = copy.deepcopy(config)
    options: dict[str, Any] = config.model.backbone
    options.pop('joining', None)
    options.update(position=False, attention_position=False)
    return config


def _walk(backbone: Any, image: Tensor):
    """Tokens ``(P + H * W, C)`` after each layer."""
    return (tokens[0] for tokens, _ in backbone.walk(image))


def _difference(before: Tensor, after: Tensor, number: int, order: Tensor) -> Tensor:
    """Of each patch ``(H * W,)``, at its place in the image."""
    before, after = before[-number:], after[-number:]
    back = torch.empty_like(after)
    back[order] = after
    return (back - before).norm(dim=1) / before.norm(dim=1).clamp(min=1e-12)
