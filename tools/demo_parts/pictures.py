"""Pictures of validation images: ground truth beside prediction, drawn by the toolboxes' own visualizers."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData
from PIL import Image, ImageDraw, ImageFont

IMAGES = 6
COLUMNS = 2
# Small images are enlarged before anything is drawn, so that names and lines stay fine.
ENLARGE = 3
MIN_SCORE = 0.5
MARGIN, HEADER = 12, 26


def draw_instances(runner: Runner, path: Path) -> None:
    """Boxes, masks, names and scores of the first validation images."""
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer

    visualizer = DetLocalVisualizer(name='demo-instances', line_width=2, alpha=0.6)
    pairs = []
    for image, sample in _predicted(runner):
        enlarged = DetDataSample()
        enlarged.gt_instances = _enlarge_instances(sample.gt_instances)
        predicted = sample.pred_instances
        enlarged.pred_instances = _enlarge_instances(predicted[predicted.scores >= MIN_SCORE])
        pairs.append(_drawn(visualizer, runner, image, enlarged))
    _save(pairs, path)


def draw_label_maps(runner: Runner, path: Path) -> None:
    """Label maps of the first validation images."""
    from mmseg.structures import SegDataSample
    from mmseg.visualization import SegLocalVisualizer

    visualizer = SegLocalVisualizer(name='demo-label-maps', alpha=0.6)
    pairs = []
    for image, sample in _predicted(runner):
        enlarged = SegDataSample()
        for field in ('gt_sem_seg', 'pred_sem_seg'):
            labels = sample.get(field).data[0].cpu().numpy().astype(np.uint8)
            setattr(enlarged, field, PixelData(data=torch.from_numpy(_enlarge(labels))[None].long()))
        pairs.append(_drawn(visualizer, runner, image, enlarged))
    _save(pairs, path)


def _predicted(runner: Runner) -> list[tuple[np.ndarray, Any]]:
    """The first validation images, ``(H, W, 3)`` RGB, with their ground truth and prediction."""
    dataset = runner.val_dataloader.dataset
    runner.model.eval()
    results = []
    for index in range(min(IMAGES, len(dataset))):
        item = dataset[index]
        image = item['inputs'].permute(1, 2, 0).numpy()[..., ::-1]
        with torch.no_grad():
            sample = runner.model.test_step(
                {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
            )[0]
        results.append((image, sample.to('cpu')))
    return results


def _enlarge(array: np.ndarray, interpolation: int = cv2.INTER_NEAREST) -> np.ndarray:
    return cv2.resize(array, None, fx=ENLARGE, fy=ENLARGE, interpolation=interpolation)


def _enlarge_instances(instances: InstanceData) -> InstanceData:
    masks = instances.masks
    masks = masks.numpy() if isinstance(masks, torch.Tensor) else masks.to_ndarray()
    boxes = instances.bboxes
    boxes = boxes if isinstance(boxes, torch.Tensor) else boxes.tensor
    height, width = masks.shape[1:]
    enlarged = InstanceData(bboxes=boxes * ENLARGE, labels=instances.labels)
    enlarged.masks = np.zeros((len(masks), height * ENLARGE, width * ENLARGE), dtype=bool)
    for target, mask in zip(enlarged.masks, masks):
        target[:] = _enlarge(mask.astype(np.uint8))
    if 'scores' in instances:
        enlarged.scores = instances.scores
    return enlarged


def _drawn(visualizer: Any, runner: Runner, image: np.ndarray, sample: Any) -> np.ndarray:
    """Ground truth and prediction side by side, ``(H, 2 W, 3)``."""
    visualizer.dataset_meta = runner.val_dataloader.dataset.metainfo
    visualizer.add_datasample(
        'pair', _enlarge(np.ascontiguousarray(image), cv2.INTER_CUBIC), sample, show=False
    )
    return visualizer.get_image()


def _save(pairs: list[np.ndarray], path: Path) -> None:
    """Arrange the pairs in columns under headings, and write a PNG of few colours."""
    height, width = pairs[0].shape[:2]
    rows = -(-len(pairs) // COLUMNS)
    columns = min(COLUMNS, len(pairs))
    sheet = Image.new(
        'RGB',
        (columns * (width + MARGIN) + MARGIN, HEADER + rows * (height + MARGIN)),
        'white',
    )
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=16)
    for column in range(columns):
        left = MARGIN + column * (width + MARGIN)
        for half, heading in enumerate(('ground truth', 'prediction')):
            x = left + (2 * half + 1) * width / 4
            pen.text((x, HEADER / 2), heading, fill='black', font=font, anchor='mm')
    for number, pair in enumerate(pairs):
        row, column = divmod(number, columns)
        place = (MARGIN + column * (width + MARGIN), HEADER + row * (height + MARGIN))
        sheet.paste(Image.fromarray(pair), place)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)
