"""Upstream's inferencers, built for weights that have been read already, and for loaders that are not upstream's."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from mmengine.config import Config
from torch import nn

from mmlape.checkpoints.matching import match, misfits
from mmlape.checkpoints.report import CheckpointError
from mmlape.registry import TRANSFORMS
from mmlape.training.load_image import LoadImage


def inferencer_of(
    cfg: Config, content: dict[str, Any], device: str, checkpoint: str, named: bool
) -> Any:
    """Upstream's inferencer for a copy of a config, with the weights in ``content``.

    Args:
        checkpoint: Where they are from, for messages.
        named: The names of classes are known, although they may not be in ``content``.

    Raises:
        CheckpointError: If the weights leave a part of the model random.
    """
    base: Any
    if cfg.default_scope == 'mmdet':
        from mmdet.apis import DetInferencer

        base = DetInferencer
    else:
        from mmseg.apis import MMSegInferencer

        base = MMSegInferencer

    class Inferencer(base):
        """Upstream's reads the checkpoint itself, a second time, and lists all names that do not fit."""

        def _load_weights_to_model(self, model: nn.Module, _: None, cfg: Any) -> None:
            _check_weights(model, content, checkpoint)
            with warnings.catch_warnings():
                if named:
                    warnings.filterwarnings('ignore', 'dataset_meta or class names are not saved')
                super()._load_weights_to_model(model, content, cfg)

        def _init_pipeline(self, cfg: Config) -> Any:
            loader = own_loader(cfg)
            if loader is not None:  # upstream knows its own alone
                cfg.test_dataloader.dataset.pipeline[0] = dict(type='LoadImageFromFile')
            pipeline = super()._init_pipeline(cfg)
            if loader is not None:
                pipeline.transforms[0] = lambda image: loader(dict(img=image))
            return pipeline

    cfg = copy.deepcopy(cfg)
    visualizer = 'DetLocalVisualizer' if cfg.default_scope == 'mmdet' else 'SegLocalVisualizer'
    cfg.visualizer = dict(type=visualizer, name='mmlape')
    return Inferencer(model=cfg, device=device)


def own_loader(cfg: Config) -> LoadImage | None:
    """The ``mmlape.LoadImage`` that a test pipeline begins with, or None."""
    first = cfg.test_dataloader.dataset.pipeline[0]
    return TRANSFORMS.build(first) if first['type'] in ('mmlape.LoadImage', LoadImage) else None


def _check_weights(model: nn.Module, content: dict[str, Any], checkpoint: str) -> None:
    report = match(model, content.get('state_dict', content), checkpoint)
    report.left_out.clear()  # heads for the training alone may be missing in the config
    if found := report.problems or misfits(report):
        raise CheckpointError(
            f'{checkpoint} does not fit the {type(model).__name__} of the config: {"; ".join(found)}'
        )
