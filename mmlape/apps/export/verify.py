"""Compare an exported file with PyTorch: upstream's own test step, on images of several sizes and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mmlape.training.load_image import LoadImage

from .selection import Size

_ALIKE = 0.98  # so many boxes must have a partner: at a threshold, rounding decides


@dataclass
class Difference:
    """Differences for one batch.

    Attributes:
        largest: Per output the largest difference: of scores, of boxes in units of the longer side, of masks 1 - IoU in
            the mean over boxes, of panoptic ids their share, of logits in units of the largest one.
        matched, compared: Boxes with a partner of their label, and all of PyTorch's and those that the file has alone.
        masks: 1 - IoU of each box's mask.
    """

    shape: tuple[int, ...]
    largest: dict[str, float] = field(default_factory=dict)
    matched: int = 0
    compared: int = 0
    masks: list[float] = field(default_factory=list)

    def note(self, name: str, value: float) -> None:
        """Keep the largest, or NaN."""
        self.largest[name] = float(np.maximum(self.largest.get(name, 0.0), value))

    def within(self, tolerance: float) -> bool:
        """Whether nothing differs by more, masks by ten times as much, and boxes have partners."""
        alike = self.matched >= _ALIKE * self.compared
        # In a small mask, one pixel at the threshold weighs much.
        limits = {name: tolerance * (10 if name == 'masks' else 1) for name in self.largest}
        return alike and all(value <= limits[name] for name, value in self.largest.items())

    def __str__(self) -> str:
        batch, _, height, width = self.shape
        boxes = f', {self.matched} of {self.compared} boxes' if self.compared else ''
        parts = ', '.join(f'{name} {value:.1e}' for name, value in self.largest.items())
        return f'{batch} x {height} x {width}{boxes}: largest difference {parts or "unknown, nothing was found"}'


def compare(
    model: Any,
    run: Any,
    outputs: Sequence[str],
    batches: Iterator[np.ndarray],
    scope: str,
    tolerance: float,
    loader: LoadImage | None = None,
) -> Iterator[Difference]:
    """The differences between ``model`` and ``run(images) -> outputs``, batch after batch.

    Args:
        model: The upstream model, before anything in it was replaced.
        run: The file: images ``(B, C, H, W)``, float32, to its outputs.
        outputs: Names of the outputs.
        batches: The images.
        scope: ``'mmdet'`` or ``'mmseg'``.
        tolerance: Boxes whose scores are so near to the lowest one are left out: they may be missing.
        loader: What reads the model's images, if they are others than RGB of 8 bits. Default None.
    """
    for images in batches:
        found = Difference(images.shape)
        got = dict(zip(outputs, run(images), strict=True))
        for number, sample in enumerate(upstream_answers(model, images, scope, loader)):
            own = {name: value[number] for name, value in got.items()}
            if scope == 'mmseg':
                expected = sample.seg_logits.data.cpu().numpy()
                change = np.abs(own['logits'] - expected).max() / np.abs(expected).max()
                found.note('logits', float(change))
            elif 'panoptic' in own:
                expected = sample.pred_panoptic_seg.sem_seg[0].cpu().numpy()
                found.note('panoptic', float((own['panoptic'] != expected).mean()))
            else:
                _compare_boxes(found, own, sample.pred_instances, tolerance)
        if found.masks:
            found.note('masks', float(np.mean(found.masks)))
        yield found


@torch.no_grad()
def upstream_answers(
    model: Any, images: np.ndarray, scope: str, loader: LoadImage | None = None
) -> list:
    """Data samples of upstream's test step for images ``(B, C, H, W)``, RGB or what ``loader`` reads; ``scope`` is
    `mmdet` or `mmseg`.

    A segmentor that slides windows over an image takes each as one window here, as the file does.
    """
    from mmengine.config import ConfigDict
    from mmengine.registry import DefaultScope

    if scope == 'mmdet':
        from mmdet.structures import DetDataSample as Sample
    else:
        from mmseg.structures import SegDataSample as Sample
    shape = images.shape[2:]
    meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, scale_factor=(1.0, 1.0))
    inputs = [_as_loaded(image, loader) for image in images]
    batch = dict(inputs=inputs, data_samples=[Sample(metainfo=dict(meta)) for _ in inputs])
    with DefaultScope.overwrite_default_scope(scope):
        if scope == 'mmdet':
            return model.test_step(batch)
        plan = model.test_cfg
        model.test_cfg = ConfigDict(plan, mode='whole')
        try:
            return model.test_step(batch)
        finally:
            model.test_cfg = plan


def _as_loaded(image: np.ndarray, loader: LoadImage | None) -> Tensor:
    """An image ``(C, H, W)`` as the test pipeline packs it: BGR, or normalised by the loader."""
    if loader is None:
        return torch.from_numpy(image[::-1].copy()).to(torch.uint8)
    loaded = loader.transform(dict(img=image.transpose(1, 2, 0)))['img']
    return torch.from_numpy(loaded.transpose(2, 0, 1).copy())


def _compare_boxes(found: Difference, own: dict, expected: Any, tolerance: float) -> None:
    """Match boxes one to one, by label, place and score."""
    longer = max(found.shape[2:])
    scores, labels, boxes = (
        expected[name].cpu().numpy() for name in ('scores', 'labels', 'bboxes')
    )
    free = [int(index) for index in np.flatnonzero(own['scores'] > 0)]
    # A full list may end between two boxes that hardly differ.
    full = len(free) == len(own['scores'])
    lowest = min([*scores, *own['scores']], default=0) + tolerance if full else 0
    for index in np.argsort(-scores, kind='stable'):
        if scores[index] <= lowest:
            continue
        found.compared += 1
        same = [each for each in free if own['labels'][each] == labels[index]]
        if not same:
            continue
        distance = np.abs(own['boxes'][same] - boxes[index]).max(axis=1) / longer
        change = np.abs(own['scores'][same] - scores[index])
        nearest = int(np.argmin(np.maximum(distance, change)))
        if max(distance[nearest], change[nearest]) > 10 * tolerance:
            continue
        free.remove(same[nearest])
        found.matched += 1
        found.note('scores', float(change[nearest]))
        found.note('boxes', float(distance[nearest]))
        if 'masks' in own and 'masks' in expected:
            mask = full_mask(
                own['masks'][same[nearest]], own['boxes'][same[nearest]], found.shape[2:]
            )
            theirs = expected.masks[index].cpu().numpy()
            union = (mask | theirs).sum()
            found.masks.append(float((mask ^ theirs).sum() / union) if union else 0.0)
    found.compared += sum(bool(own['scores'][index] > lowest) for index in free)


def full_mask(mask: np.ndarray, box: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """A mask ``(H, W)``, boolean, of a whole one or of probabilities within a box, pasted by MMDetection."""
    if mask.dtype == bool:
        return mask
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    pasted, _ = _do_paste_mask(
        torch.from_numpy(mask[None, None]), torch.from_numpy(box[None]), *size, skip_empty=False
    )
    return (pasted[0] >= 0.5).numpy()


def made_images(
    count: int, size: Size, seed: int = 0, loader: LoadImage | None = None
) -> np.ndarray:
    """Coloured patches with noise, ``(count, C, H, W)``, whole numbers from 0 to 255 in float32, or of the mean and
    deviation that ``loader`` has: most models find something."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, loader.channels if loader else 3, 7, 9, generator=generator) * 255
    images = functional.interpolate(coarse, size, mode='nearest')
    noise = torch.randn(images.shape, generator=generator) * 12
    made = (images + noise).clamp(0, 255).round().numpy()
    if loader is None:
        return made
    mean, std = (each[:, None, None] for each in (loader.mean, loader.std))
    return (made - 128) / 64 * std + mean
