"""Pictures of validation images: ground truth beside prediction, drawn with MMEngine's visualizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.runner import Runner
from mmengine.visualization import Visualizer
from PIL import Image, ImageDraw, ImageFont

IMAGES = 8
COLUMNS = 2
# Small images are enlarged before anything is drawn, so that names and lines stay fine.
SIDE = 280
MIN_SCORE = 0.5
MARGIN, HEADER = 10, 26
COLORS = 224


def draw_instances(runner: Runner, path: Path) -> None:
    """Boxes, masks where there are any, names and scores of the first validation images."""

    def paint(visualizer: Visualizer, sample: Any, scale: float, predicted: bool) -> None:
        instances = sample.pred_instances if predicted else sample.gt_instances
        if predicted:
            instances = instances[instances.scores >= MIN_SCORE]
        masks, boxes = _arrays(instances)
        names = []
        for number, box in enumerate(boxes * scale):
            label = int(instances.labels[number])
            color = tuple(runner.val_dataloader.dataset.metainfo['palette'][label])
            if masks is not None:
                mask = _enlarge(masks[number], scale) > 0.5
                visualizer.draw_binary_masks(mask, colors=color, alphas=0.55)
            visualizer.draw_bboxes(torch.as_tensor(box)[None], edge_colors=color, line_widths=1.5)
            name = runner.val_dataloader.dataset.metainfo['classes'][label]
            if predicted:
                name += f' {float(instances.scores[number]):.2f}'
            names.append((name, box[:2], color))
        for name in names:  # after all masks, so that no mask hides a name
            _write(visualizer, *name)

    _sheet(runner, path, paint)


def draw_label_maps(runner: Runner, path: Path) -> None:
    """Label maps of the first validation images, every region with its name."""

    def paint(visualizer: Visualizer, sample: Any, scale: float, predicted: bool) -> None:
        field = sample.pred_sem_seg if predicted else sample.gt_sem_seg
        labels = field.data[0].numpy()
        for label in np.unique(labels):
            if label == 0:
                continue
            color = tuple(runner.val_dataloader.dataset.metainfo['palette'][label])
            mask = (labels == label).astype(np.uint8)
            visualizer.draw_binary_masks(_enlarge(mask, scale) > 0.5, colors=color, alphas=0.6)
            name = runner.val_dataloader.dataset.metainfo['classes'][label]
            _, _, regions, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
            # Names of tiny regions would hide them.
            for left, top, _, _, area in regions[1:]:
                if area >= labels.size / 400:
                    _write(visualizer, name, np.array([left, top]) * scale, color)

    _sheet(runner, path, paint)


def _sheet(runner: Runner, path: Path, paint: Callable[..., None]) -> None:
    """Draw the first validation images in columns of pairs under headings, and write a PNG of few colours."""
    visualizer = Visualizer(name='demo')
    panels = []
    for image, sample in _predicted(runner):
        scale = SIDE / image.shape[0]
        for predicted in (False, True):
            visualizer.set_image(_enlarge(image, scale))
            paint(visualizer, sample, scale, predicted)
            panels.append(visualizer.get_image())
    columns = min(2 * COLUMNS, len(panels))
    height, width = panels[0].shape[:2]
    rows = -(-len(panels) // columns)
    sheet = Image.new(
        'RGB',
        (columns * (width + MARGIN) + MARGIN, HEADER + rows * (height + MARGIN)),
        'white',
    )
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=16)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = MARGIN + column * (width + MARGIN), HEADER + row * (height + MARGIN)
        sheet.paste(Image.fromarray(panel), (x, y))
        if row == 0:
            heading = 'prediction' if column % 2 else 'ground truth'
            pen.text((x + width / 2, HEADER / 2), heading, fill='black', font=font, anchor='mm')
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def _predicted(runner: Runner) -> list[tuple[np.ndarray, Any]]:
    """The first validation images, ``(H, W, 3)`` RGB, with their ground truth and prediction."""
    dataset = runner.val_dataloader.dataset
    runner.model.eval()
    results = []
    for index in range(min(IMAGES, len(dataset))):
        item = dataset[index]
        image = np.ascontiguousarray(item['inputs'].permute(1, 2, 0).numpy()[..., ::-1])
        with torch.no_grad():
            batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
            results.append((image, runner.model.test_step(batch)[0].to('cpu')))
    return results


def _enlarge(array: np.ndarray, scale: float) -> np.ndarray:
    """Resize smoothly; masks become opacities, to be cut at 0.5."""
    if array.dtype != np.uint8 or array.ndim == 2:
        array = array.astype(np.float32)
    return cv2.resize(array, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)


def _arrays(instances: Any) -> tuple[np.ndarray | None, np.ndarray]:
    """Masks ``(K, H, W)`` or None, and boxes ``(K, 4)``, as arrays."""
    masks, boxes = instances.get('masks'), instances.bboxes
    if masks is not None:
        masks = masks.numpy() if isinstance(masks, torch.Tensor) else masks.to_ndarray()
    boxes = boxes if isinstance(boxes, torch.Tensor) else boxes.tensor
    return masks, boxes.numpy()


def _write(visualizer: Visualizer, name: str, corner: np.ndarray, color: tuple) -> None:
    """A name above the corner of a box, or below it at the upper edge of the image."""
    below = corner[1] < 22
    visualizer.draw_texts(
        name,
        torch.tensor([[max(corner[0], 2.0), corner[1] + (3 if below else -3)]]),
        font_sizes=11,
        colors='black',
        vertical_alignments='top' if below else 'bottom',
        bboxes=[dict(facecolor=[c / 255 for c in color], alpha=0.9, pad=1.2, edgecolor='none')],
    )
