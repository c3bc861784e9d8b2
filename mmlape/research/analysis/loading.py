"""Loading for figures: a config's backbone, its stages and norms, images, and calls of modules in a pass."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, TypeVar

import cv2
import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseModule, ImgDataPreprocessor
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import Tensor, nn

from mmlape.apps.inference.reading import IMAGES
from mmlape.backbones import Stage
from mmlape.checkpoints.conversion import BACKBONE, State, convert, tensors_of
from mmlape.checkpoints.matching import match, misfits
from mmlape.checkpoints.reading import read_checkpoint
from mmlape.checks import check_grid, check_layers, check_option, check_positive_int
from mmlape.norm import DTN
from mmlape.pixels import pixels_of
from mmlape.position import JoinedPosition, MergedPosition
from mmlape.shipped import read_config

from . import NORMS

# Options of a config's data preprocessor that change the values of single images.
_VALUE_OPTIONS = ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr')
Key = TypeVar('Key', bound=Hashable)
# None for all, a number of first layers, or 0-based indices.
Layers = int | Sequence[int] | None


class Result:
    """A dataclass of arrays and what describes them."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``."""
        return {name: np.asarray(value) for name, value in vars(self).items()}


def load_backbone(
    config: str | Path | Config,
    checkpoint: str | Path | None = None,
    source: str | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Build only the backbone of a detector's or a segmentor's config, in evaluation mode on the CPU.

    Args:
        config: A config with ``model.backbone``, of MMDetection, MMSegmentation or neither.
        checkpoint: File with weights of a whole model (names with ``backbone.``; the rest is ignored) or of a
            backbone. They must fit strictly. Default None: initial values.
        source: Format of a checkpoint from elsewhere (``'timm'``, ``'deit'``, ...), see
            :func:`~mmlape.checkpoints.convert`. Default None: our own names.
        pretrained: Without a checkpoint, apply the config's own ``init_cfg``. Default False.
        seed: Of the initial values. Default 0.

    Raises FileNotFoundError if the checkpoint does not exist; ValueError if there is no such config, it has no
    backbone, or the checkpoint does not fit; TypeError if it has something other than tensors among its weights."""
    if checkpoint is None and source is not None:
        raise ValueError(f'source={source!r} is the format of a checkpoint, but none is given')
    if checkpoint is not None and pretrained:
        raise ValueError('give either a checkpoint or pretrained=True, not both')
    backbone = _build(config, seed)
    if checkpoint is not None:
        state = tensors_of(read_checkpoint(checkpoint))
        if source is None:
            _load_own(backbone, state, str(checkpoint))
        else:
            backbone.load_state_dict(convert(state, source, backbone), strict=True)
    elif pretrained:
        backbone.init_weights()
    backbone.eval()  # some upstream backbones return nothing here
    return backbone


def _build(config: str | Path | Config, seed: int) -> BaseModule:
    config = config if isinstance(config, Config) else read_config(config)
    options = config.get('model', {}).get('backbone')
    if options is None:
        raise ValueError(f'the config {config.filename!r} has no model.backbone')
    # Use the type's own prefix if it has one: a backbone of ours then needs no toolbox.
    prefix = str(options.get('type')).rpartition('.')[0]
    scope = prefix or config.get('default_scope') or 'mmlape'
    with torch.random.fork_rng(devices=[]), DefaultScope.overwrite_default_scope(scope):
        torch.manual_seed(seed)
        return MODELS.build(options)


def _load_own(backbone: nn.Module, state: State, where: str) -> None:
    """Load the backbone's part of a state dict, if it fits strictly."""
    start = f'{BACKBONE}.'
    part = {name.removeprefix(start): state[name] for name in state if name.startswith(start)}
    report = match(backbone, part or state, where)
    found = report.problems or misfits(report)
    if found:
        raise ValueError(
            f'{where!r} does not fit the {type(backbone).__name__} of the config: {"; ".join(found)}\n'
            'Is it the checkpoint of this config? One from elsewhere needs its format (source).'
        )


def find_images(paths: Sequence[str | Path], maximum: int | None = None) -> list[Path]:
    """Image files from a list of files and folders (not their subfolders); those of a folder sorted by name.

    Args:
        paths: Files and folders.
        maximum: Keep only the first so many. Default None: all.

    Raises FileNotFoundError if a path does not exist; ValueError if there is no image, or ``maximum`` is less than
    1."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f'there is no image or folder {str(path)!r}')
        inside = sorted(path.iterdir()) if path.is_dir() else []
        images = [file for file in inside if file.suffix.lower() in IMAGES and file.is_file()]
        found += images or [path]
        if found[-1].is_dir():
            listed = ', '.join(IMAGES)
            raise ValueError(f'there is no image ({listed}) in the folder {str(path)!r}')
    if maximum is not None:
        found = found[: check_positive_int('number of images', maximum)]
    return found


def read_images(
    config: Config,
    paths: Sequence[str | Path | Image.Image],
    size: int | tuple[int, int] | None = None,
) -> Iterator[Tensor]:
    """Read images one at a time, ``(1, 3, height, width)`` float32, normalized as the config's data preprocessor does.

    Args:
        config: Of a detector, a segmentor or a classifier; without ``data_preprocessor`` pixels are BGR, 0 to 255.
        paths: Image files or PIL images.
        size: Resize to this height and width, one integer or a pair. Default None: as they are. Never padded.

    Raises ValueError if a file cannot be decoded, or ``size`` is less than 1."""
    size = None if size is None else check_grid('size', size)
    # MMPretrain's stands beside the model.
    of_model = config.get('model', {}).get('data_preprocessor')
    options = of_model or config.get('data_preprocessor') or {}
    given = {name: options[name] for name in _VALUE_OPTIONS if options.get(name) is not None}
    if options.get('to_rgb'):
        given['bgr_to_rgb'] = True
    preprocess = ImgDataPreprocessor(**given)
    for path in paths:
        try:
            if isinstance(path, Image.Image):
                pixels = pixels_of(path)
            else:
                pixels = mmcv.imread(str(path), channel_order='bgr')
        except (OSError, cv2.error):
            pixels = None
        if pixels is None:
            raise ValueError(f'{str(path)!r} cannot be read as an image')
        if size is not None:
            pixels = mmcv.imresize(pixels, size[::-1])
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        yield preprocess(dict(inputs=[image]))['inputs']


@contextmanager
def record_calls(modules: Mapping[Key, nn.Module]) -> Iterator[dict[Key, tuple[tuple, Any]]]:
    """The arguments and the result of the last call of each module, by forward hooks, while this lasts."""
    calls: dict[Key, tuple[tuple, Any]] = {}

    def note(key: Key, module: nn.Module, arguments: tuple, output: Any) -> None:
        calls[key] = (arguments, output)

    with ExitStack() as hooks:
        for key, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(note, key)))
        yield calls


class NormPlace(NamedTuple):
    """A norm of a layer."""

    name: str  #: ``'layer 0 norm1'``, ...
    layer: int  #: 0-based index in the stage.
    norm: nn.Module  #: The module.


def _pick(found: dict[str, Stage], part: str | None, option: str) -> list[Stage]:
    return list(found.values()) if part is None else [found[check_option(option, part, found)]]


def find_stages(backbone: nn.Module, part: str | None = None) -> list[Stage]:
    """The stages of a backbone: layers that follow one another on one grid.

    Args:
        backbone: Any network with ``stages()``: one of ours.
        part: Name of the layers of the only stage wanted: ``'blocks'`` in a ViT, ``'vit.blocks'`` in a ViT-Adapter,
            ``'block1'`` to ``'block4'`` in a pyramid. Default None: all.

    Raises ValueError if the network has no transformer layers of our kind, or no stage of that name."""
    answer = getattr(backbone, 'stages', None)  # timm's networks have a module of this name
    stages = answer() if isinstance(answer, MethodType) else []
    if not stages:
        raise ValueError(
            f'{type(backbone).__name__} has no transformer layers of the kind of mmlape: give one of its '
            'backbones, e.g. mmlape.VisionTransformer, mmlape.ViTAdapter or mmlape.SwinTransformer'
        )
    return _pick({stage.name: stage for stage in stages}, part, 'part')


def position_stages(backbone: nn.Module, part: str | None = None) -> list[Stage]:
    """The stages that have an absolute position of their own, not that of the stage before (``mmlape.MergedPosition``).

    Args:
        part: Name of the position of the only stage wanted: ``'position'`` in a ViT, ``'vit.position'`` in a
            ViT-Adapter, ``'position1'`` to ``'position4'`` in a pyramid. Default None: all.

    Raises ValueError if there is none (position may be inside the attention alone), or none of that name."""
    found = {
        stage.position_name: stage
        for stage in find_stages(backbone)
        if stage.position is not None and not isinstance(stage.position.embedding, MergedPosition)
    }
    if not found:
        raise ValueError(
            f'{type(backbone).__name__} has no absolute position embedding: there is nothing to show'
        )
    return _pick(found, part, 'the position')


def position_of(stage: Stage) -> JoinedPosition:
    """The position of a stage of :func:`position_stages`; ValueError if the stage has none."""
    if stage.position is None:
        raise ValueError(f'{stage.name!r} has no absolute position embedding')
    return stage.position


def norm_places(
    stage: Stage, layers: Layers = None, norms: Sequence[str] = NORMS
) -> list[NormPlace]:
    """The norms of a stage, layer by layer.

    Args:
        norms: ``'norm1'`` (before attention), ``'norm2'`` (before the feed-forward network) or both (default).

    Raises ValueError if a layer or norm does not exist."""
    wanted = check_layers('layers', layers, len(stage.blocks))
    for norm in norms:
        check_option('norm', norm, NORMS)
    found = [
        NormPlace(f'layer {layer} {norm}', layer, getattr(stage.blocks[layer], norm))
        for layer in wanted
        for norm in norms
        if hasattr(stage.blocks[layer], norm)  # parallel branches have one norm
    ]
    if not found:
        raise ValueError(f'no layer of {stage.name!r} has {" or ".join(norms)}')
    return found


def dtn_places(
    stage: Stage, layers: Layers = None, norms: Sequence[str] = NORMS
) -> list[NormPlace]:
    """The norms of a stage that are DTN, maybe none; arguments as for :func:`norm_places`.

    Raises ValueError if a layer does not exist, or one that is named in ``layers`` has no DTN."""
    places = norm_places(stage, layers, norms)
    found = [place for place in places if isinstance(place.norm, DTN)]
    without = {place.layer for place in places} - {place.layer for place in found}
    if layers is not None and without:
        having = sorted({place.layer for place in dtn_places(stage)})
        raise ValueError(
            f'layers must have DTN: {sorted(without)} of {stage.name!r} have none, {having} have it'
        )
    return found


def dtn_stages(backbone: nn.Module, part: str | None = None) -> list[Stage]:
    """The stages that have a DTN; arguments as for :func:`find_stages`, ValueError if there is none (of that name)."""
    found = {stage.name: stage for stage in find_stages(backbone) if dtn_places(stage)}
    if not found:
        raise ValueError(f'no layer of this {type(backbone).__name__} has DTN as its norm')
    return _pick(found, part, 'part with DTN')
