"""The demo's models. Imports no PyTorch, so that the command line starts quickly."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# A method of a console and its arguments.
Call = tuple[str, tuple, dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """One model of the demo.

    Args:
        key: Its folder's name.
        title: Its name on screen.
        config: Its config's file name in configs/demo.
        metrics: Display names of the evaluator's metrics, with the factor that scales them to 0..1.
        seconds: Expected seconds of one evaluation and of the training, on one core.
    """

    key: str
    title: str
    config: str
    metrics: dict[str, tuple[str, float]]
    seconds: tuple[float, float]

    @property
    def steps(self) -> dict[str, float]:
        """Names of the steps on screen, with their expected seconds."""
        evaluation, training = self.seconds
        return {
            f'{self.title}: untrained ': evaluation,
            f'{self.title}: training  ': training,
            f'{self.title}: trained   ': evaluation,
        }


TASKS = {
    task.key: task
    for task in (
        Task(
            'mask_rcnn',
            'Mask R-CNN',
            'mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
            {'box AP': ('coco/bbox_mAP', 1.0), 'mask AP': ('coco/segm_mAP', 1.0)},
            (15, 215),
        ),
        Task(
            'segmenter',
            'Segmenter',
            'segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
            {'mIoU': ('mIoU', 0.01)},
            (6, 320),
        ),
        Task(
            'retinanet_dtn_pvt',
            'DTN-PVT RetinaNet',
            'retinanet_pvt-micro-dtn_fpn_digit-scenes.py',
            {'box AP': ('coco/bbox_mAP', 1.0)},
            (8, 220),
        ),
    )
}


class Job(NamedTuple):
    """The task of one process of the demo.

    Attributes:
        key: The model.
        config_root: The folder of configs.
        work_dir: Where results, checkpoints and pictures go.
        data_root: The digit scenes.
        data_id: Fingerprint of these digit scenes.
        iterations: Number of training iterations, None for the config's.
        threads: Of this process; None for the environment's.
    """

    key: str
    config_root: Path
    work_dir: Path
    data_root: Path
    data_id: str
    iterations: int | None
    threads: int | None

    @property
    def log_file(self) -> Path:
        """OpenMMLab's output."""
        return self.work_dir / f'{self.key}.log'


def describe(metrics: dict[str, float]) -> str:
    """Metrics on one line."""
    return ', '.join(f'{name} {value:.3f}' for name, value in metrics.items())
