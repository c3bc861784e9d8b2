"""Pictures of validation images: ground truth beside prediction."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.runner import Runner

from mmlape.apps.inference.drawing import side_by_side
from mmlape.apps.inference.results import Result
from mmlape.apps.inference.samples import prediction_of, truth_of
from mmlape.apps.report import save_figure

IMAGES = 8
COLUMNS = 2
MIN_SCORE = 0.5


def draw(runner: Runner, path: Path) -> None:
    """Draw boxes and masks, or label maps, of the first validation images; write a PNG."""
    results = list(_results(runner))
    rows = -(-len(results) // COLUMNS)
    figure = Figure(figsize=(12 * COLUMNS, 6 * rows + 0.3), layout='constrained')
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for place in axes[0]:
        place.set_title('ground truth', loc='left')
        place.set_title('prediction', loc='right')
    for place in axes.flat:
        place.axis('off')
    for place, pair in zip(axes.flat, results):
        place.imshow(side_by_side(*pair)[..., ::-1])
    save_figure(figure, path)


def _results(runner: Runner) -> Iterator[tuple[Result, Result]]:
    """Ground truth and prediction of each image."""
    dataset = runner.val_dataloader.dataset
    runner.model.eval()
    for index in range(min(IMAGES, len(dataset))):
        item = dataset[index]
        with torch.no_grad():
            batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
            sample = runner.model.test_step(batch)[0].to('cpu')
        meta = dataset.metainfo
        image = np.ascontiguousarray(item['inputs'].permute(1, 2, 0).numpy())
        blank = Result(image, '', meta['classes'], palette=meta['palette'])
        found = prediction_of(sample, blank.classes, MIN_SCORE)
        yield replace(blank, **(truth_of(sample) or {})), replace(blank, **found)
