"""Pictures of validation images: ground truth beside prediction."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from mmengine.runner import Runner

from mmlape.apps.inference.drawing import side_by_side
from mmlape.apps.inference.results import Result, write_picture
from mmlape.apps.inference.samples import prediction_of, truth_of

IMAGES, PAIRS = 8, 2  # in a row
SIDE = 288  # pixels of each
MIN_SCORE = 0.5


def draw(runner: Runner, path: Path) -> None:
    """Draw boxes and masks, or label maps, of the first validation images, truth left and prediction right."""
    drawn = [each for pair in _results(runner) for each in pair]
    write_picture(side_by_side(*drawn, columns=2 * PAIRS, longest=SIDE), path)


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
