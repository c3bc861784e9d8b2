"""Settings of a file for its runtime: how images become its input, and what its outputs mean."""

from __future__ import annotations

from typing import Any

from mmengine.config import Config

from mmlape.apps.inference.score import SCORE
from mmlape.checks import type_name
from mmlape.registry import TRANSFORMS
from mmlape.training.load_image import DarkBackground

from .selection import Size

_EXAMPLE = [384, 256]  # width and height of images for any size, where a config names none
_LONGEST_RATIO = 2  # of the sides of a scale that is a size of images, such as (1333, 800)


def runtime_settings(
    cfg: Config, network: Any, classes: tuple[str, ...], size: Size | None, score: float = SCORE
) -> dict:
    """Settings that go into the file, as plain values.

    Keys: ``outputs``; ``classes``; ``score``, the minimum score of a box by default; ``size``, ``[height, width]`` of
    the input, None for any; ``scale``, to which an image is resized where any size goes: ``[longer, shorter]`` with
    ``keep_ratio``, else ``[width, height]``, None for its own size; ``multiple``, to which its sides are then rounded
    up; ``least``, None or ``[height, width]`` to which a smaller one is padded where any size goes; ``channels``, None
    for RGB of 8 bits, else how many a file has, whose values are taken as they are; ``brightest``, None or that of
    ``mmlape.DarkBackground``, by which an image is changed first; ``fill``, of each channel, beside the image;
    ``windows``, None or ``crop`` and ``stride`` of a segmentor's windows, ``[height, width]``.
    """
    scale, keep_ratio = test_scale(cfg)
    dark, mean = dark_background(cfg), network.mean
    fill = [0.0] * 3 if mean is None else mean.flatten().tolist()[:: -1 if network.is_bgr else 1]
    test_cfg: Any = cfg.model.get('test_cfg') or {}
    windows = None
    if test_cfg.get('mode') == 'slide':
        crop, stride = list(test_cfg.crop_size), list(test_cfg.stride)
        if size is not None:  # windows of the file's size, which overlap as much
            stride = [max(1, step * new // old) for step, new, old in zip(stride, size, crop)]
            crop = list(size)
        windows = dict(crop=crop, stride=stride)
    return dict(
        outputs=list(network.outputs),
        classes=list(classes),
        score=score,
        size=None if size is None else list(size),
        scale=scale,
        keep_ratio=keep_ratio,
        multiple=_multiple(cfg),
        least=list(network.least) if network.least else None,
        channels=network.channels,
        brightest=dark and dark.brightest,
        fill=fill,
        windows=windows,
    )


def test_scale(cfg: Config) -> tuple[list[int] | None, bool]:
    """``scale`` of the config's test pipeline, and whether it keeps the ratio of sides: else it is width, height."""
    for step in _test_pipeline(cfg):
        scale = step.get('scale')
        if type_name(step).endswith('Resize') and scale is not None:
            keep_ratio = bool(step.get('keep_ratio'))
            sides = [scale, scale] if isinstance(scale, int) else list(scale)
            return (sorted(sides, reverse=True) if keep_ratio else sides), keep_ratio
    return None, True


def _multiple(cfg: Config) -> int:
    """``size_divisor`` of MMSegmentation's ResizeToMultiple in the test pipeline, else 1."""
    steps = [step for step in _test_pipeline(cfg) if type_name(step) == 'ResizeToMultiple']
    return steps[0].get('size_divisor', 32) if steps else 1


def dark_background(cfg: Config) -> DarkBackground | None:
    """The ``mmlape.DarkBackground`` of the test pipeline, None without one."""
    steps = [step for step in _test_pipeline(cfg) if type_name(step) == DarkBackground.__name__]
    return TRANSFORMS.build(steps[0]) if steps else None


def steps_left_out(cfg: Config) -> list[str]:
    """Types of the test pipeline's steps that nothing in :func:`runtime_settings` stands for.

    The first one, which reads an image, and those that read annotations or pack are no matter of a runtime.
    """
    once = {'ResizeToMultiple', DarkBackground.__name__}
    left_out, scale_is_known = [], False
    for step in _test_pipeline(cfg)[1:]:
        name = type_name(step)
        if name.endswith('Resize') and step.get('scale') is not None and not scale_is_known:
            scale_is_known = True
        elif name in once:
            once.remove(name)
        elif not name.startswith(('Load', 'Pack')):
            left_out.append(name)
    return left_out


def _test_pipeline(cfg: Config) -> list:
    dataset = cfg.test_dataloader.dataset
    while 'pipeline' not in dataset or not dataset.pipeline:
        inner = dataset.get('dataset') or (dataset.get('datasets') or [None])[0]
        if inner is None:
            return []
        dataset = inner
    return dataset.pipeline


def default_size(cfg: Config, divisor: int, any_size: bool = False) -> Size:
    """Height and width of a file for one size, else (``any_size``) an example of them: a window, or the test pipeline's
    scale with the longer side across.

    Raises:
        ValueError: If there is no scale, or one that keeps the ratio of sides and only limits the longer one, as
            ADE20K's (2048, 512).
    """
    test_cfg: Any = cfg.model.get('test_cfg') or {}
    if test_cfg.get('mode') == 'slide':
        return tuple(test_cfg.crop_size)
    scale, keep_ratio = test_scale(cfg)
    if any_size:
        scale, keep_ratio = scale or _EXAMPLE, False
    wanted = 'give --size HEIGHTxWIDTH, or --dynamic batch,size'
    if scale is None:
        raise ValueError(f'the config names no test size: {wanted}')
    if keep_ratio and scale[0] > _LONGEST_RATIO * scale[1]:
        raise ValueError(
            f'the test pipeline resizes images to a shorter side of {scale[1]}, so that each has a size of its own: '
            f'{wanted}'
        )
    width, height = (-(-side // divisor) * divisor for side in scale)
    return height, width
