"""Memory of a training step, counted on a CPU: what a config needs before a GPU is rented for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
from mmengine.config import Config
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData, PixelData
from numpy.polynomial import Polynomial
from torch import Tensor, nn

from mmlape.checks import type_name
from mmlape.runtime.private import FakeTensorMode, tree_leaves
from mmlape.training.check_data import pipeline_steps
from mmlape.training.load_image import LoadImage

from .live_bytes import bytes_kept, peak_live_bytes

__all__ = ['StepMemory', 'measure_step_memory', 'random_batch', 'training_model', 'training_size']

# Heads are computed at these (height, width), multiples of all strides and windows, and extrapolated: a polynomial of
# the pixels. Segmenter's head has the weights of its attention, a square.
SMALL = {'mmdet': ((224, 224), (224, 448)), 'mmseg': ((224, 224), (224, 448), (448, 448))}
# Where a config names no size: COCO's images with a short side of 800, the longest.
LARGEST = (800, 1344)
OBJECTS = 8


class StepMemory(NamedTuple):
    """Bytes of a training step on one GPU."""

    parameters: int  #: Of the whole model, with its buffers, and autocast's copies of them.
    gradients: int  #: Of the parameters that are trained.
    optimizer: int  #: States of the config's optimizer.
    activations: int  #: What autograd saves of all images, and the most that heads and losses have in between.
    image_size: tuple[int, int]  #: (height, width).
    batch_size: int  #: Images.

    @property
    def total(self) -> int:
        """The sum, which a step reaches about; see :func:`measure_step_memory`."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def measure_step_memory(
    config: Config,
    batch_size: int | None = None,
    image_size: tuple[int, int] | None = None,
    amp: bool = False,
) -> StepMemory:
    """Count what a training step of a detector or segmentor keeps.

    The backbone and neck run without values (PyTorch's fake tensors) at the size asked for. Heads run with values, on
    small images, and grow with the pixels (of segmentors, with their square too). A detector's image has 8 objects;
    where a second stage samples boxes, as many as it takes at most, so that it has the most masks. Deformable attention
    keeps what the operator on GPUs does.

    All images have this most at once here, and gradients are there from the start: a little more than is needed.
    Not counted: passing tensors of the backbone, CUDA's context, libraries' workspaces and the allocator's gaps (about
    1 GB), and with several processes DDP's buckets, which are as large as the gradients.

    Args:
        config: Of MMDetection or MMSegmentation.
        batch_size: Images per GPU. Default None: those of the config.
        image_size: (height, width) of the padded images. Default None: :func:`training_size`.
        amp: Whether autocast to bfloat16 is on; float16 takes the same. Heads of detectors are counted in float32 also
            then, which is an upper bound. Default False.

    Raises:
        ValueError: If the config's ``default_scope`` is neither ``'mmdet'`` nor ``'mmseg'``.
    """
    scope = config.get('default_scope')
    if scope not in ('mmdet', 'mmseg'):
        raise ValueError(f"default_scope must be 'mmdet' or 'mmseg' to be measured, got {scope!r}")
    batch_size = batch_size or config.train_dataloader.batch_size
    image_size = image_size or training_size(config)
    model = training_model(config)
    with DefaultScope.overwrite_default_scope(scope), _as_on_a_gpu():
        # MMCV's operators for second stages have no bfloat16 on a CPU.
        with torch.autocast('cpu', torch.bfloat16, enabled=amp and scope == 'mmseg'):
            heads = _of_heads(model, config)
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            _make_fake(model, fake)
            optimizer = _optimizer_bytes(model, config)
            image = torch.empty(1, image_channels(config), *image_size)
            with torch.autocast('cpu', torch.bfloat16, enabled=amp):
                backbone = bytes_kept(model, partial(model.extract_feat, image))
    of_an_image = backbone + heads(image_size[0] * image_size[1])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return StepMemory(
        parameters=_bytes([*model.parameters(), *model.buffers()]) + amp * _bytes(trained) // 2,
        gradients=_bytes(trained),
        optimizer=optimizer,
        activations=round(batch_size * of_an_image),
        image_size=image_size,
        batch_size=batch_size,
    )


def training_size(config: Config) -> tuple[int, int]:
    """(height, width) of training images: of padding, the last crop or the largest scale, else 800 x 1344."""
    preprocessor = config.model.get('data_preprocessor') or {}
    augments = preprocessor.get('batch_augments') or []
    pipeline = pipeline_steps(config, 'train')
    crops = [step['crop_size'] for step in pipeline if 'crop_size' in step]
    crops = [(each, each) if isinstance(each, int) else each for each in crops]
    crops = [each for each in crops if all(isinstance(side, int) for side in each)]  # not relative
    resized = [step for step in pipeline if type_name(step) in ('Resize', 'RandomResize')]
    scales = [_largest(step) for step in resized if isinstance(step.get('scale'), (list, tuple))]
    sizes = [
        *(augment['size'] for augment in augments if 'size' in augment),
        preprocessor.get('size'),
        *reversed(crops),
        *([-(-side // 32) * 32 for side in sorted(largest)] for largest in scales),
        LARGEST,
    ]
    height, width = next(size for size in sizes if size)
    return height, width


def image_channels(config: Config) -> int:
    """Channels of training images: of ``mmlape.LoadImage``, else of the preprocessor's mean, else 3."""
    steps = pipeline_steps(config, 'train')
    loaders = [step for step in steps if type_name(step) == LoadImage.__name__]
    if loaders:
        return loaders[0]['channels']
    return len((config.model.get('data_preprocessor') or {}).get('mean') or [0, 0, 0])


def _largest(step: Mapping[str, Any]) -> list[int]:
    """The largest scale to which a step resizes."""
    scale, ratio = step['scale'], max(step.get('ratio_range') or [1.0])
    largest = max(scale) if isinstance(scale[0], (list, tuple)) else scale
    return [round(side * ratio) for side in largest]


def random_batch(
    config: Config, size: tuple[int, int], objects: int = OBJECTS, seed: int = 0
) -> dict[str, list]:
    """A batch of one random image of a ``size`` (height, width) with objects, or with classes in squares."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    shape = (image_channels(config), height, width)
    image = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    meta: dict[str, Any] = dict(
        img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size
    )
    meta.update(scale_factor=(1.0, 1.0))
    if config.default_scope == 'mmseg':
        from mmseg.structures import SegDataSample

        labels = _squares(config.model.decode_head.num_classes, size, generator)
        sample = SegDataSample(gt_sem_seg=PixelData(data=labels), metainfo=meta)
    else:
        sample = _detection_sample(config, meta, objects, generator)
    return dict(inputs=[image], data_samples=[sample])


def _squares(classes: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """A label map (1, height, width): an eighth of each side has one class."""
    squares = torch.randint(0, classes, (1, 1, 8, 8), generator=generator).float()
    return nn.functional.interpolate(squares, size)[0].long()


def _detection_sample(config: Config, meta: dict, objects: int, generator: torch.Generator) -> Any:
    import numpy as np
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    height, width = meta['img_shape']
    limit = torch.tensor([width, height])
    corners = torch.rand(objects, 2, generator=generator) * limit / 2
    sides = (0.05 + 0.45 * torch.rand(objects, 2, generator=generator)) * limit
    boxes = torch.cat([corners, corners + sides], dim=1)
    masks = np.zeros((objects, height, width), dtype=np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist()):
        mask[top : bottom + 1, left : right + 1] = 1
    labels = torch.randint(0, _classes(config), (objects,), generator=generator)
    nothing = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    truth = InstanceData(bboxes=boxes, labels=labels, masks=BitmapMasks(masks, height, width))
    sample = DetDataSample(gt_instances=truth, ignored_instances=nothing, metainfo=meta)
    if stuff := (config.model.get('panoptic_head') or {}).get('num_stuff_classes'):
        labels = _classes(config) + _squares(stuff, (height, width), generator)
        sample.gt_sem_seg = PixelData(sem_seg=labels)
    elif semantic := (config.model.get('roi_head') or {}).get('semantic_head'):  # HTC
        sample.gt_sem_seg = PixelData(
            sem_seg=_squares(semantic.num_classes, (height, width), generator)
        )
    return sample


def _classes(config: Config) -> int:
    model = config.model
    head = model.get('panoptic_head') or model.get('roi_head', model).bbox_head
    head = head[0] if isinstance(head, (list, tuple)) else head
    return head.get('num_things_classes') or head.num_classes


def training_model(config: Config) -> BaseModel:
    """The model of a detector's or segmentor's config in training mode, for :func:`random_batch` on one CPU.

    Batch norms have fixed statistics, since a map of one cell has none, and images are not padded. Weights are those of
    a start without pre-training, with which boxes and masks have sizes.
    """
    scope = config.default_scope
    import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    parts = copy.deepcopy(config.model)
    _remove_pretrained(parts)
    if scope == 'mmseg':
        parts.data_preprocessor.update(size=None, size_divisor=1)
    else:
        parts.data_preprocessor.batch_augments = None
    with DefaultScope.overwrite_default_scope(scope):
        model = revert_sync_batchnorm(MODELS.build(parts)).train()
        model.init_weights()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def _remove_pretrained(part: Any) -> None:
    """Files are not needed to count."""
    if isinstance(part, dict):
        if 'Pretrained' in str((part.get('init_cfg') or {}).get('type')):
            del part['init_cfg']
        for each in part.values():
            _remove_pretrained(each)


def _of_heads(model: BaseModel, config: Config) -> Callable[[int], float]:
    """The most bytes that heads have of an image, by its number of pixels."""
    sizes = SMALL[config.default_scope]
    pixels = [height * width for height, width in sizes]
    most = [_peak_of_heads(model, config, size) for size in sizes]
    polynomial = Polynomial.fit(pixels, most, len(pixels) - 1)
    return lambda number: float(polynomial(number))


def _peak_of_heads(model: BaseModel, config: Config, size: tuple[int, int]) -> int:
    """Measure the peak in the forward and backward pass of the heads on one image of a ``size``."""
    sampler = (config.model.get('train_cfg') or {}).get('rcnn', {})
    sampler = sampler[0] if isinstance(sampler, (list, tuple)) else sampler
    sampler = sampler.get('sampler', {})
    objects = round(sampler.get('num', 0) * sampler.get('pos_fraction', 0)) or OBJECTS
    data = model.data_preprocessor(random_batch(config, size, objects), True)
    with torch.no_grad():
        features = model.extract_feat(data['inputs'])
    maps = [each for each in tree_leaves(features) if isinstance(each, Tensor)]
    for each in maps:
        each.requires_grad_(each.is_floating_point())
    with mock.patch.object(model, 'extract_feat', return_value=features):
        return peak_live_bytes(model, partial(_to_maps, model, data, maps))


def _to_maps(model: BaseModel, data: dict, maps: list[Tensor]) -> None:
    """A step of the heads alone: gradients of their weights are counted elsewhere."""
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    torch.autograd.grad(loss, maps, allow_unused=True)


def _make_fake(model: nn.Module, fake: FakeTensorMode) -> None:
    """New parameters and buffers without values."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            new = nn.Parameter(fake.from_tensor(parameter.detach()), parameter.requires_grad)
            setattr(module, name, new)
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, fake.from_tensor(buffer))


def _optimizer_bytes(model: nn.Module, config: Config) -> int:
    """Return the bytes of the states after a first step of the config's optimizer."""
    options = copy.deepcopy(config.optim_wrapper)
    options.type = 'OptimWrapper'  # others need a GPU
    for key in ('loss_scale', 'dtype'):
        options.pop(key, None)
    optimizer = build_optim_wrapper(model, options).optimizer
    for group in optimizer.param_groups:
        for parameter in group['params']:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return _bytes([value for value in states if isinstance(value, Tensor)])


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Deformable attention keeps what the operator for GPUs keeps, and what is recomputed in eager training is so here,
    although a mode counts."""
    replaced = {
        'mmlape.layers.deformable.multi_scale_deformable_attn_pytorch': _sampled,
        'mmcv.ops.multi_scale_deform_attn.multi_scale_deformable_attn_pytorch': _sampled,
        'mmlape.layers.mlp.is_eager': lambda *_tensors: True,
        'mmlape.norm.dtn_plain.is_eager': lambda *_tensors: True,
    }
    with ExitStack() as stack:
        for name, other in replaced.items():
            stack.enter_context(mock.patch(name, other))
        yield


def _sampled(value: Tensor, _shapes: Any, locations: Tensor, weights: Tensor) -> Tensor:
    return _Sampling.apply(value, locations, weights)


class _Sampling(torch.autograd.Function):
    """Shapes and kept tensors of mmcv's operator alone: value (B, N, heads, C), locations (B, Q, heads, ...)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(value, locations, weights)
        return value.new_zeros(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors)
