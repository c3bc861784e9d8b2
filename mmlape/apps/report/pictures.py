"""The hook that draws the pictures of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.apps.inference.drawing import draw, side_by_side
from mmlape.apps.inference.results import Result, read_picture, write_picture
from mmlape.apps.inference.samples import prediction_of, truth_is_scaled, truth_of
from mmlape.apps.inference.score import SCORE, best_score
from mmlape.checks import check_number, check_rate, check_type
from mmlape.registry import HOOKS


@HOOKS.register_module()
class PictureHook(Hook):
    """Draws the predictions of a test as ``mmlape predict`` does, beside the ground truth where the test pipeline loads
    it; of MMDetection and MMSegmentation.

    Args:
        out_dir: Folder of the pictures, ``NAME.jpg``, by the names of the images below the data set's folder. Default
            None: no files.
        show: Show them on the screen. Default False.
        wait_time: Seconds per picture on the screen. Default 2.
        score: Minimum score of a box. Default None: that of the best F1, if the training has stored it in the
            checkpoint, else 0.3.
    """

    priority = 'VERY_LOW'

    def __init__(
        self,
        out_dir: str | None = None,
        show: bool = False,
        wait_time: float = 2,
        score: float | None = None,
    ) -> None:
        check_type('out_dir', out_dir, str | None)
        check_type('show', show, bool)
        self.out_dir, self.show = out_dir, show
        self.wait_time = check_number('wait_time', wait_time, minimum=0)
        self.score = None if score is None else check_rate('score', score, with_one=True)
        self._least = SCORE if self.score is None else self.score

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Take the score that is stored with the weights."""
        stored = best_score(checkpoint, str(runner.cfg.get('load_from')))
        if self.score is None and stored is not None:
            self._least = stored

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        """Draw the predictions of a batch."""
        dataset: Any = runner.test_loop.dataloader.dataset
        for sample in outputs or ():
            picture = self._picture(sample, dataset)
            name = _name(Path(sample.img_path), dataset)
            if self.out_dir is not None:
                write_picture(picture, Path(self.out_dir, f'{name}.jpg'))
            if self.show:
                runner.visualizer.show(picture[..., ::-1], name, self.wait_time)

    @master_only
    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Say where the pictures are."""
        if self.out_dir is not None:
            boxes = f', boxes from score {self._least:g}' * (
                runner.cfg.get('default_scope') == 'mmdet'
            )
            runner.logger.info(f'pictures{boxes}: {self.out_dir}')

    def _picture(self, sample: Any, dataset: Any) -> Any:
        meta = dataset.metainfo
        blank = Result(read_picture(sample.img_path), sample.img_path, meta['classes'])
        blank.palette = meta.get('palette')
        found = replace(blank, **prediction_of(sample, blank.classes, self._least))
        truth = truth_of(sample, sample.scale_factor if truth_is_scaled(dataset) else None)
        return draw(found) if truth is None else side_by_side(replace(blank, **truth), found)


def _name(path: Path, dataset: Any) -> str:
    """An image's path below the folder of the images, without suffix; its name where it is elsewhere."""
    folders = getattr(dataset, 'data_prefix', None) or {}
    folder = folders.get('img', folders.get('img_path')) or ''
    name = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    return name.with_suffix('').as_posix()
