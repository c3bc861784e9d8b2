"""A trained detector or segmentor that answers: images in, boxes, masks or label maps out."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from logging import WARNING
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import DefaultScope
from PIL import Image
from torch import Tensor
from torch.nn import functional

from mmlape.checkpoints.contents import BuildLimit
from mmlape.checkpoints.files import write_checkpoint
from mmlape.checkpoints.loaders import load_from_local
from mmlape.checkpoints.strangers import PLAIN_DATASETS, names_and_colours
from mmlape.checks import check_positive_int, check_rate
from mmlape.config_text import config_text
from mmlape.cpu import optimize
from mmlape.cpu.memory import return_freed_memory
from mmlape.layers import merge_lora
from mmlape.pixels import picture_of, pixels_of
from mmlape.training.stop_hooks import all_finite

from .folders import DELTA_BASE, check_may_be_written, write_folder
from .reading import available_memory, shown
from .results import Result, read_image
from .samples import instances_of
from .score import KEY, SCORE, best_score
from .tiles import LogitMean, Tile, input_side, merge_boxes, tiles_of
from .upstream import inferencer_of, own_loader

# An image of which no more than this is left loses small objects: said once.
_SHRUNK = 0.5
Picture = str | Path | np.ndarray | Image.Image
_MANY_PIXELS = 2048**2  # in one pass of a segmentor
_NARROW = 20  # sides to one another, from which on resizing may leave nothing


class Model:
    """A detector of MMDetection or a segmentor of MMSegmentation with its weights; see :func:`load`.

    Args:
        cfg: Its config.
        checkpoint: File of its weights.
        device, optimized: See :func:`load`.
        dataset_meta: ``classes`` and ``palette``. Default None: the checkpoint's, else those of COCO or Cityscapes.
        content: What was read of the file. Default None: it is read here.

    Attributes:
        cfg: The config.
        model: The detector or segmentor itself.
        scope: ``'mmdet'`` or ``'mmseg'``.
        classes: Names of the labels.
        finds_boxes: It is a detector, else a semantic segmentor.
        delta_base: Place of the weights to which its own were given as differences; else None.
        own_score: The score of the best F1 on the validation images, if the training has stored it; else None.
        loader: ``mmlape.LoadImage``, if its images are others than those of three channels of 8 bits; else None.

    Raises:
        ValueError: If the config is of neither, the device cannot be used, or (:class:`CheckpointError`) the weights
            leave a part of the model random.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoint: str | Path,
        device: str | None = None,
        optimized: bool = True,
        dataset_meta: dict[str, Any] | None = None,
        content: dict[str, Any] | None = None,
    ) -> None:
        scope = cfg.get('default_scope')
        if scope not in ('mmdet', 'mmseg') or cfg.get('test_dataloader') is None:
            raise ValueError(
                f'{checkpoint}: predictions are for detectors and segmentors with a test_dataloader, '
                f'got a config with default_scope={scope!r}'
            )
        self.finds_boxes = scope == 'mmdet'
        self.cfg = copy.deepcopy(cfg)
        device = get_device() if device is None else device
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f'the device {device!r} cannot be used: {reason}') from None
        if content is None:
            content = load_from_local(str(checkpoint), 'cpu')
        with DefaultScope.overwrite_default_scope(scope), BuildLimit(Path(checkpoint)):
            self._inferencer = inferencer_of(
                self.cfg, content, device, str(checkpoint), dataset_meta is not None
            )
        self.model = self._inferencer.model.eval()
        self.model.dataset_meta = names_and_colours(dataset_meta or self.model.dataset_meta)
        if optimized and torch.device(device).type == 'cpu':
            self._inferencer.model = self.model = optimize(self.model)
        self.scope, self.classes = scope, tuple(self.model.dataset_meta['classes'])
        self._label_type = np.uint8 if len(self.classes) <= 256 else np.int16
        self.palette = self.model.dataset_meta.get('palette')
        self.own_score = best_score(content, str(checkpoint))
        self.delta_base = (content.get('meta') or {}).get(DELTA_BASE)
        self.loader = own_loader(self.cfg)
        self._told: set[str] = set()

    def predict(
        self,
        images: Picture | Iterable[Picture | tuple[str, Picture]],
        batch: int = 1,
        score: float | None = None,
        tile: int | None = None,
        overlap: float = 0.2,
        with_whole: bool = False,
    ) -> Iterator[Result]:
        """Yield what the model finds, image after image, as they are asked for.

        Args:
            images: One or several: files, PIL images, or arrays ``(H, W, 3)``, uint8, BGR; or pairs of a name and one
                of them. Of a model for other images (``mmlape.LoadImage``), arrays ``(H, W, C)`` as in its files.
            batch: Images, or tiles, per pass. Default 1.
            score: Minimum score of a box; 0 for all that the config's ``test_cfg`` lets pass. Default None:
                :attr:`score`.
            tile: Side of tiles in pixels, for large images. Default None: images as a whole, resized as the config's
                test pipeline says.
            overlap: Least share by which tiles overlap. Default 0.2.
            with_whole: With tiles, look at the whole (shrunken) image too, for objects larger than a tile; for
                detectors.

        Raises:
            ValueError: If an option is out of range, or an image cannot be read.
            TypeError: If an image is none of these.
        """
        check_positive_int('batch', batch)
        score = self.score if score is None else score
        check_rate('score', score, with_one=True)
        if with_whole and tile is None:
            raise ValueError('with_whole goes with tile')
        if with_whole and not self.finds_boxes:
            raise ValueError('with_whole (--global) is for detectors, and this is a segmentor')
        many = isinstance(images, Iterable) and not isinstance(images, (Picture, bytes))
        several: Iterable[Any] = images if many else [images]  # type: ignore[assignment]
        named = (self._opened(number, image) for number, image in enumerate(several))
        if tile is not None:
            tiles_of(1, 1, tile, overlap)  # refused here, not with the first image
            self._tell_of_tiles(tile)
            return (
                self._in_tiles(name, image, batch, score, tile, overlap, with_whole)
                for name, image in named
            )
        return self._in_batches(named, batch, score)

    def check(self, name: str, image: np.ndarray, batch: int = 1, tile: int | None = None) -> None:
        """Refuse (ValueError) a narrow or large image that cannot be predicted, before it is one of a batch."""
        height, width = image.shape[:2] if tile is None else (tile, tile)
        part = image[:height, :width]
        if max(part.shape[:2]) < _NARROW * min(part.shape[:2]) and height * width <= _MANY_PIXELS:
            return
        with DefaultScope.overwrite_default_scope(self.scope):
            (sample, *_) = self._preprocess([part], [name])['data_samples']
        if tile is None:
            self._tell(name, image, sample, batch)

    def save(self, path: str | Path) -> None:
        """Write one ``.safetensors`` file that :func:`load` reads: weights in half precision, LoRA merged into
        them, and what predictions need of the config, without paths of this machine.

        Raises:
            ValueError: If the file exists or has another suffix, or a weight is too large for half precision.
        """
        if Path(path).suffix != '.safetensors':
            raise ValueError(f'a model is saved as .safetensors, got {str(path)!r}')
        check_may_be_written(self)
        state = {
            name: value.half() if value.is_floating_point() else value
            for name, value in self.merged_state().items()
        }
        if large := [name for name, value in state.items() if not all_finite(value)]:
            raise ValueError(f'{large[0]} is too large for half precision')
        write_checkpoint(path, state, dict(cfg=config_text(self.kept_config()), **self.texts()))

    def save_folder(
        self,
        path: str | Path,
        metrics: Mapping[str, float] | None = None,
        facts: Mapping[str, str] | None = None,
        license: str | None = None,
        delta: str | None = None,
    ) -> None:
        """Write a folder to share, which :func:`load` reads: ``model.safetensors``, with LoRA merged into the weights;
        ``config.py``, what predictions need of the config; ``metrics.json``; ``README.md``, a model card.

        Args:
            path: The folder, which must be new or empty.
            metrics: Figures by name. Default none.
            facts: Lines of the card's table by their heading, such as ``data`` and ``training``. Default none.
            license: Of the weights, an identifier as the Hugging Face hub has them. Default None: not stated.
            delta: ``SOURCE:PLACE`` of weights whose licence lets nobody pass them on, such as
                ``'timm:vit_small_patch16_dinov3'``: of the backbone's, only differences to them are written. Default
                None.

        Raises:
            ValueError: If the folder is not empty, or ``delta`` does not fit the backbone.
            FileNotFoundError, ConnectionError: If the weights of ``delta`` cannot be had.
        """
        write_folder(self, Path(path), metrics or {}, facts or {}, license, delta)

    @property
    def score(self) -> float:
        """The default minimum score of a box: ``own_score``, else 0.3."""
        return SCORE if self.own_score is None else self.own_score

    def score_note(self, option: str = '--score') -> str:
        """A line for people on the default minimum score; '' for a segmentor, and where it is nobody's own."""
        if self.own_score is None or not self.finds_boxes:
            return ''
        return f"minimum score {self.score:g}, the best F1's on the validation images; {option} changes it"

    def texts(self) -> dict[str, str]:
        """Texts beside the weights in a ``.safetensors``."""
        texts = dict(dataset_meta=json.dumps(self.dataset_meta))
        return texts if self.own_score is None else {**texts, KEY: str(self.own_score)}

    @property
    def dataset_meta(self) -> dict[str, Any]:
        """Names and colours of the labels."""
        return self.model.dataset_meta

    def kept_config(self) -> dict[str, Any]:
        """Return the config that predictions need, without paths of this machine."""
        dataset = self.cfg.test_dataloader.dataset
        return dict(
            default_scope=self.scope,
            model=_without_weights(self.cfg.model),
            test_dataloader=dict(
                dataset=dict(
                    type=PLAIN_DATASETS[self.scope],
                    metainfo=self.dataset_meta,
                    pipeline=dataset.pipeline,
                )
            ),
        )

    def merged_state(self) -> dict[str, Tensor]:
        """The weights, with LoRA merged into them."""
        return merge_lora(copy.deepcopy(self.model)).state_dict()

    def read(self, path: str | Path) -> np.ndarray:
        """An image file as :meth:`predict` takes it; ValueError if it cannot be read."""
        return read_image(path) if self.loader is None else self.loader.read(path)

    def _empty_result(self, name: str, image: np.ndarray) -> Result:
        """A result without anything found, for an image that :meth:`predict` takes."""
        picture, pixels = (image, None) if self.loader is None else (picture_of(image), image)
        return Result(picture, name, self.classes, palette=self.palette, pixels=pixels)

    def _opened(self, number: int, image: Any) -> tuple[str, np.ndarray]:
        name, image = image if isinstance(image, tuple) else (None, image)
        if isinstance(image, (str, Path)):
            return name or str(image), self.read(image)
        if isinstance(image, Image.Image):
            name = name or getattr(image, 'filename', None)
            image = pixels_of(image, self.loader is None)
        name = name or str(number)
        if self.loader is not None and isinstance(image, np.ndarray):
            return name, self.loader.checked(image, name)
        if not (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.ndim == 3
            and image.shape[2] == 3
            and image.size
        ):
            what = (
                f'{image.dtype} {image.shape}'
                if isinstance(image, np.ndarray)
                else type(image).__name__
            )
            raise TypeError(
                f'an image must be a file, a PIL image, or a uint8 array (H, W, 3) in BGR, not empty, got {what}'
            )
        return name, image

    def _in_batches(
        self, named: Iterator[tuple[str, np.ndarray]], batch: int, score: float
    ) -> Iterator[Result]:
        while some := list(islice(named, batch)):
            names, images = zip(*some)
            samples = self._run(images, names)
            for name, image, sample in zip(names, images, samples, strict=True):
                yield self._result(name, image, sample, score)

    def _in_tiles(
        self,
        name: str,
        image: np.ndarray,
        batch: int,
        score: float,
        side: int,
        overlap: float,
        with_whole: bool,
    ) -> Result:
        height, width = image.shape[:2]
        tiles = tiles_of(height, width, side, overlap)
        batches = [tiles[first : first + batch] for first in range(0, len(tiles), batch)]
        whole = self._empty_result(name, image)
        if not self.finds_boxes:
            whole.label_map = self._label_map(image, tiles, batches)
            return whole
        parts = []
        for some in batches:
            cuts = [tile.cut(image) for tile in some]
            for cut, sample in zip(cuts, self._run(cuts), strict=True):
                parts.append(self._result(name, cut, sample, score))
        if with_whole:
            whole = self._result(name, image, self._run([image])[0], score)
        return merge_boxes(whole, tiles, parts)

    def _label_map(
        self, image: np.ndarray, tiles: Sequence[Tile], batches: Sequence[Sequence[Tile]]
    ) -> np.ndarray:
        """The label map of an image by the mean logits of its tiles."""
        label_map = np.zeros(image.shape[:2], self._label_type)

        def decide(tile: Tile, logits: Tensor) -> None:
            (sample,) = self.model.postprocess_result(logits[None])  # argmax, or the threshold
            tile.cut(label_map)[:] = sample.pred_sem_seg.data[0].cpu().numpy()

        mean = LogitMean(tiles, decide)
        for some in batches:
            # A variable would hold the logits during the next pass.
            mean.add(some, self._logits([tile.cut(image) for tile in some]))
            # Blocks of many sizes would leave holes of more than a gigabyte.
            return_freed_memory()
        return label_map

    def network_input(self, image: Picture) -> tuple[Tensor, tuple[float, float]]:
        """Return the network's input for an image as :meth:`predict` takes them: ``(1, C, height, width)``, padded to
        the right and below; and by how much the image was resized down and across."""
        _, image = self._opened(0, image)
        with DefaultScope.overwrite_default_scope(self.scope):
            data = self.model.data_preprocessor(self._preprocess([image]), False)
        rows, columns = data['data_samples'][0].img_shape[:2]
        return data['inputs'], (rows / image.shape[0], columns / image.shape[1])

    @torch.no_grad()
    def _logits(self, images: Sequence[np.ndarray]) -> list[Tensor]:
        """Logits ``(C, H, W)`` of a segmentor for images of one size.

        The first steps of ``EncoderDecoder.predict``, whose ``seg_logits`` of one channel are probabilities.
        """
        with DefaultScope.overwrite_default_scope(self.scope):
            data = self.model.data_preprocessor(self._preprocess(images), False)
            metas = [sample.metainfo for sample in data['data_samples']]
            logits = self.model.inference(data['inputs'], metas)
        meta = data['data_samples'][0].metainfo  # that of all: they are of one size
        padding = meta.get('img_padding_size', meta.get('padding_size', (0, 0, 0, 0)))
        left, right, top, bottom = padding
        rows, columns = logits.shape[2:]
        logits = logits[:, :, top : rows - bottom, left : columns - right]
        if logits.shape[2:] != meta['ori_shape']:
            logits = functional.interpolate(
                logits, meta['ori_shape'], mode='bilinear', align_corners=self.model.align_corners
            )
        return list(logits)

    def _run(self, images: Sequence[np.ndarray], names: Sequence[str] = ()) -> list[Any]:
        """The data samples of upstream for images of one batch; ``names`` if they are whole images."""
        if not self.finds_boxes and len({image.shape for image in images}) > 1:
            # MMSegmentation pads no images to a common size in tests.
            each = [(images[k : k + 1], names[k : k + 1]) for k in range(len(images))]
            return [self._run(image, name)[0] for image, name in each]
        with DefaultScope.overwrite_default_scope(self.scope):
            data = self._preprocess(images, names)
            for name, image, sample in zip(names, images, data['data_samples']):
                self._tell(name, image, sample, len(images))  # the pass may take minutes
            return self._inferencer.forward(data)

    def _preprocess(self, images: Sequence[np.ndarray], names: Sequence[str] = ()) -> Any:
        """Upstream's batch of images after the test pipeline.

        Raises:
            ValueError: If an image is so narrow that nothing of it is left when its length is resized.
        """
        try:
            (data,) = self._inferencer.preprocess(list(images), len(images))
        except cv2.error as error:
            sizes = ', '.join('{1} x {0}'.format(*image.shape) for image in images)
            raise ValueError(
                f'{shown(", ".join(names)) or "a tile"}: {sizes} pixels cannot be resized by the test pipeline '
                f'({error.err}); of a narrow image, use shorter tiles (--tile SIDE, predict(..., tile=SIDE))'
            ) from None
        return data[1] if self.finds_boxes else data

    def _result(self, name: str, image: np.ndarray, sample: Any, score: float) -> Result:
        found = self._empty_result(name, image)
        if not self.finds_boxes:
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            found.label_map = labels.astype(self._label_type)
            return found
        if 'pred_instances' not in sample:
            raise ValueError(
                f'this model finds no instances ({", ".join(sample.keys())}): use mmlape test for panoptic models'
            )
        return replace(found, **instances_of(sample.pred_instances, score))

    def _tell(self, name: str, image: np.ndarray, sample: Any, batch: int) -> None:
        """Say once what a large image loses or costs, before it is computed.

        Raises:
            ValueError: If the scores of all classes do not fit into memory.
        """
        name = shown(name)
        height, width = image.shape[:2]
        scale = min(getattr(sample, 'scale_factor', (1.0,)))
        rows, columns = sample.img_shape[:2]
        mode = (self._inferencer.cfg.model.get('test_cfg') or {}).get('mode', 'whole')
        # MMSegmentation resizes the scores to the size of the image.
        pixels = 0 if self.finds_boxes else max(rows * columns, height * width)
        size = 4 * batch * pixels * len(self.classes)
        side = input_side(self.cfg)
        tiles = f'use tiles (--tile {side}, predict(..., tile={side}))'
        if pixels > _MANY_PIXELS and size > (free := self._free_memory()):
            raise ValueError(
                f'{name}: {width} x {height} pixels are computed at once (model.test_cfg.mode={mode!r}), which takes '
                f'{size / 1e9:.1f} GB for the scores alone, and {free / 1e9:.1f} GB are free: {tiles}'
            )
        if scale <= _SHRUNK:
            self._say(
                'shrunk',
                f'{name}: {width} x {height} pixels are shrunk to {scale:.0%} by the test pipeline, so small objects '
                f'are lost: {tiles}',
            )
        elif rows * columns > _MANY_PIXELS and not self.finds_boxes:
            self._say(
                'at once',
                f'{name}: {columns} x {rows} pixels are computed at once (model.test_cfg.mode={mode!r}), which takes '
                f'much time, and {size / 1e9:.1f} GB for the scores alone: {tiles}',
            )

    def _tell_of_tiles(self, side: int) -> None:
        """Say once that tiles are enlarged, to objects of a size that the model has not been trained on."""
        steps, own = self.cfg['test_dataloader']['dataset']['pipeline'], input_side(self.cfg)
        if side < _SHRUNK * own and any('Resize' in str(step['type']) for step in steps):
            self._say(
                'enlarged',
                f'the test pipeline enlarges tiles of {side} pixels to {own}, which takes long and shows objects '
                f'larger than the model knows them: use --tile {own} (predict(..., tile={own}))',
            )

    def _free_memory(self) -> int:
        """Bytes that are free where the model is."""
        device = next(self.model.parameters()).device
        if device.type != 'cuda':
            return available_memory()
        # PyTorch holds blocks for reuse, which count as used.
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held

    def _say(self, about: str, text: str) -> None:
        if about not in self._told:
            self._told.add(about)
            print_log(text, logger='current', level=WARNING)


def _without_weights(config: Any) -> Any:
    """A part of a config without the weights that its modules would start from, and without LoRA."""
    if isinstance(config, dict):
        return {k: _without_weights(v) for k, v in config.items() if k not in ('init_cfg', 'lora')}
    return [_without_weights(each) for each in config] if isinstance(config, list) else config
