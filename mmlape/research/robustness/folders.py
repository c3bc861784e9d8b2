"""Images in folders named after WordNet synsets, and accuracy among the classes that are there (ImageNet-R)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric

from mmlape.apps.inference.reading import IMAGES
from mmlape.checks import check_type
from mmlape.registry import DATASETS, METRICS


def synset_labels() -> dict[str, int]:
    """The label of each of ImageNet-1k's 1,000 synsets (``{'n01440764': 0, ...}``), their alphabetical order."""
    from timm.data import ImageNetInfo

    return {name: label for label, name in enumerate(sorted(ImageNetInfo().label_names()))}


@DATASETS.register_module()
class SynsetFolder(BaseDataset):
    """Images ``FOLDER/n01443537/*.jpg``, labelled as ImageNet-1k labels the synset, also where only some of the 1,000
    are there: one severity of the published ImageNet-C, and ImageNet-R (200 synsets; Hendrycks et al., ICCV 2021).

    An item has ``img_path`` and ``gt_label`` (0 to 999); ``metainfo['labels']`` are those that occur, ascending.

    Args:
        folder: The folder that holds the synsets' folders.
        options: Of MMEngine's ``BaseDataset`` (``pipeline``, ``indices``, ...).

    Raises:
        ValueError: There is no such folder, no image in it, or a folder that is not a synset of ImageNet-1k.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        check_type('folder', folder, str)
        self.folder = Path(folder)
        super().__init__(**options)

    def load_data_list(self) -> list[dict]:
        """``img_path`` and ``gt_label`` of every image, by names."""
        if not self.folder.is_dir():
            raise ValueError(f'folder: there is no {self.folder}')
        labels = synset_labels()
        found: list[dict[str, Any]] = []
        for place in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            if place.name not in labels:
                raise ValueError(
                    f'{place} is not a synset of ImageNet-1k; expected folders like n01440764'
                )
            images = sorted(p for p in place.iterdir() if p.suffix.lower() in IMAGES)
            found += [dict(img_path=str(path), gt_label=labels[place.name]) for path in images]
        if not found:
            raise ValueError(
                f'{self.folder} holds no image n*/*, with a suffix of {", ".join(IMAGES)}'
            )
        self._metainfo['labels'] = sorted({item['gt_label'] for item in found})
        return found


@METRICS.register_module()
class SubsetAccuracy(BaseMetric):
    """Top-1 accuracy (in %) of a classifier of 1,000 classes among those that occur, as ImageNet-R is scored: classes
    that the data set does not have cannot be answered.

    For data sets with ``metainfo['labels']``, such as :class:`SynsetFolder`.
    """

    default_prefix = 'subset'

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Whether the best of the classes that occur is right, for each image."""
        meta = self.dataset_meta or {}
        if 'labels' not in meta:
            raise ValueError('SubsetAccuracy needs a data set with metainfo["labels"]')
        labels = torch.as_tensor(meta['labels'])
        for sample in data_samples:
            scores = sample['pred_score'].flatten().cpu()
            if len(scores) <= int(labels.max()):
                raise ValueError(
                    f'the data have labels up to {int(labels.max())}, and the classifier '
                    f'{len(scores)} classes: expected one of the 1,000 of ImageNet-1k'
                )
            best = labels[scores[labels].argmax()]
            self.results.append(bool((sample['gt_label'].cpu() == best).any()))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """``top1`` in %."""
        return {'top1': 100 * sum(results) / len(results)}
