"""Pictures of validation images: ground truth beside prediction."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.runner import Runner

from mmlape.apps.inference.results import MaskCrop, Result
from mmlape.apps.report import save_figure

IMAGES = 8
COLUMNS = 4
MIN_SCORE = 0.5


def draw(runner: Runner, path: Path) -> None:
    """Draw boxes and masks, or label maps, of the first validation images; write a PNG."""
    results = list(_results(runner))
    rows = -(-len(results) // COLUMNS)
    figure = Figure(figsize=(6 * COLUMNS, 6 * rows + 0.3), layout='constrained')
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for place, title in zip(axes[0], ('ground truth', 'prediction') * (COLUMNS // 2)):
        place.set_title(title)
    for place in axes.flat:
        place.axis('off')
    for place, result in zip(axes.flat, results):
        place.imshow(result.picture()[..., ::-1])
    save_figure(figure, path)


def _results(runner: Runner) -> Iterator[Result]:
    """Ground truth and prediction of each image."""
    dataset = runner.val_dataloader.dataset
    runner.model.eval()
    for index in range(min(IMAGES, len(dataset))):
        item = dataset[index]
        with torch.no_grad():
            batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
            sample = runner.model.test_step(batch)[0].to('cpu')
        for source in ('gt', 'pred'):
            result = Result(
                np.ascontiguousarray(item['inputs'].permute(1, 2, 0).numpy()),
                '',
                dataset.metainfo['classes'],
                palette=dataset.metainfo['palette'],
            )
            if 'pred_sem_seg' in sample:
                labels = sample.get(f'{source}_sem_seg').data[0].numpy()
                result.label_map = np.where(labels == 0, 255, labels)  # no colour for background
            else:
                _enter(result, sample.get(f'{source}_instances'))
            yield result


def _enter(result: Result, instances: Any) -> None:
    """Enter instances of MMDetection, predicted ones of a sufficient score."""
    if 'scores' in instances:
        instances = instances[instances.scores >= MIN_SCORE]
    boxes, masks = instances.bboxes, instances.get('masks')
    result.boxes = getattr(boxes, 'tensor', boxes).numpy()
    result.labels = instances.labels.numpy()
    result.scores = instances.scores.numpy() if 'scores' in instances else np.ones(len(instances))
    if masks is not None:
        masks = masks.numpy() if isinstance(masks, torch.Tensor) else masks.to_ndarray()
        result.crops = [MaskCrop.of(mask.astype(bool)) for mask in masks]
