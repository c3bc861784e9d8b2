"""Images of any size and any content: shapes are right, and finite pixels give finite outputs and gradients; whole
detectors and segmentors make predictions of them.

Hypothesis draws the cases, each network's from a seed of its own, so that they are the same in every run.
"""

import importlib
import math
import zlib
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from backbone_variants import VARIANTS, randomise
from config_utils import CONFIGS, use_scope
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mmengine.config import Config
from registered import BACKBONES
from torch import nn
from torch.utils._pytree import tree_leaves

from mmlape.backbones import AdapterBackbone, EoMT, SequenceTransformer
from mmlape.registry import MODELS

FAST, SLOW = 3, 24
# More pixels than that, and attention of every token to all takes seconds.
MOST_PIXELS = 2**13
SETTINGS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
PRECISIONS = {'fp32': None, 'fp16': torch.float16, 'bf16': torch.bfloat16}
PIXELS = {
    'noise': lambda shape, draw: torch.randint(0, 256, shape, generator=draw),
    'black': lambda shape, draw: torch.zeros(shape),
    'white': lambda shape, draw: torch.full(shape, 255),
    'constant': lambda shape, draw: torch.randint(0, 256, (1,), generator=draw).expand(shape),
    'extremes': lambda shape, draw: 255 * torch.randint(0, 2, shape, generator=draw),
    'one pixel': lambda shape, draw: nn.functional.pad(
        torch.full((*shape[:2], 1, 1), 255), (0, shape[3] - 1, 0, shape[2] - 1)
    ),
}
SIDES = st.one_of(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 2048))


@dataclass(frozen=True)
class Case:
    """A batch and what is done with it."""

    batch: int
    size: tuple[int, int]
    pixels: str
    normalised: bool
    precision: str
    training: bool
    number: int

    def images(self):
        """``(B, 3, H, W)``."""
        draw = torch.Generator().manual_seed(self.number)
        images = PIXELS[self.pixels]((self.batch, 3, *self.size), draw).float()
        return (images - 114) / 58 if self.normalised else images

    def autocast(self):
        """The region of its precision."""
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is None else torch.autocast('cpu', dtype=dtype)


cases = st.builds(
    Case,
    batch=st.integers(1, 4),
    size=st.tuples(SIDES, SIDES).filter(lambda size: size[0] * size[1] <= MOST_PIXELS),
    pixels=st.sampled_from(sorted(PIXELS)),
    normalised=st.booleans(),
    precision=st.sampled_from(sorted(PRECISIONS)),
    training=st.booleans(),
    number=st.integers(0, 2**32 - 1),
)


def micro(build):
    torch.manual_seed(0)
    return randomise(build(), std=0.1)


def expected_shapes(model, batch, size):
    """Of all outputs, one after the other."""
    if isinstance(model, AdapterBackbone):
        strides = [4 * 2**index for index in model.out_indices]
        return [(batch, model.embed_dims, *(math.ceil(side / s) for side in size)) for s in strides]
    if isinstance(model, EoMT):
        stage, scale, predictions = model.stages()[0], 2 ** len(model.upscale), model.num_blocks + 1
        sides = [
            math.ceil(side * scale / s) for side, s in zip(size, stage.embed.stride, strict=True)
        ]
        classes = (model.num_classes + 1,)
        lasts = [classes] * predictions + [sides] * predictions
        return [(batch, model.num_queries, *last) for last in lasts]
    if isinstance(model, SequenceTransformer):  # backbone_variants.ids_of_images
        size = (1, min(sum(size), math.prod(size)))
    shapes, grid = [], size
    for number, stage in enumerate(model.stages()):
        grid = tuple(
            math.ceil(side / step) for side, step in zip(grid, stage.embed.stride, strict=True)
        )
        layers = len(stage.blocks) if model.counts == 'layers' else 1
        for unit in range(number, number + layers):
            if unit in model.out_indices:
                joined = stage.num_prefix * (layers == 1 or unit >= stage.prefix_after)
                shapes += shapes_of(model.out_type, batch, stage.embed_dims, grid, joined)
    return shapes


def shapes_of(out_type, batch, dims, grid, prefix):
    return {
        'featmap': [(batch, dims, *grid)],
        'raw': [(batch, prefix + grid[0] * grid[1], dims)],
        'featmap_and_prefix': [(batch, dims, *grid), (batch, prefix, dims)],
        'featmap_and_cls': [(batch, dims, *grid), (batch, dims)],
        'cls_and_dist': [(batch, dims)] * 2,
    }.get(out_type if isinstance(out_type, str) else '', [(batch, dims)])


def check(model, case):
    model.train(case.training)
    torch.manual_seed(0)
    with case.autocast(), torch.set_grad_enabled(case.training):
        outputs = tree_leaves(model(case.images()))
    assert [tuple(o.shape) for o in outputs] == expected_shapes(model, case.batch, case.size), case
    assert all(output.isfinite().all() for output in outputs), case
    if case.training:
        model.zero_grad()
        sum(output.float().mean() for output in outputs).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), case


def fuzz(name, examples, check_case):
    done = []

    @seed(zlib.crc32(name.encode()))
    @settings(SETTINGS, max_examples=examples)
    @given(cases)
    def run(case):
        check_case(case)
        done.append(case)

    run()
    assert len(set(done)) >= 0.6 * examples


@pytest.mark.parametrize('name', BACKBONES)
def test_every_component(name):
    model = micro(BACKBONES[name])
    fuzz(name, FAST, lambda case: check(model, case))


@pytest.mark.slow
@pytest.mark.parametrize('name', [*BACKBONES, *VARIANTS])
def test_every_network_often(name):
    model = micro({**BACKBONES, **VARIANTS}[name])
    fuzz(f'{name} often', SLOW, lambda case: check(model, case))


# Token ids are whole numbers.
OF_SEQUENCES = ('LSHAttention', 'SequenceTransformer', 'TokenEmbed')
# At infinity, these functions have their limits; NaN stays NaN.
BOUNDED = ('DyT', 'Derf')


@pytest.mark.parametrize('name', [name for name in BACKBONES if name not in OF_SEQUENCES])
def test_pixels_that_are_not_finite(name):
    """The image's outputs are not finite either: nothing passes for a result. In evaluation other images of the batch
    are what they would be."""
    model = micro(BACKBONES[name]).eval()
    images = torch.randn(2, 3, 40, 33, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = tree_leaves(model(images))
        for value in (math.nan, math.inf, -math.inf):
            images[0, 1, 5, 7] = value
            after = tree_leaves(model(images))
            finite = all(output[0].isfinite().all() for output in after)
            assert finite == (name in BOUNDED and not math.isnan(value))
            for output, expected in zip(after, before, strict=True):
                torch.testing.assert_close(output[1], expected[1], rtol=1e-5, atol=1e-5)


HEADS = (
    'mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes',
    'retinanet_pvt-micro-dtn_fpn_digit-scenes',
    'segmenter_vit-micro-adapter-lape_mask_digit-scenes',
)


def check_predictions(library, model, case):
    # The suppression of boxes on a CPU (MMCV's) knows float32 alone.
    precision = 'fp32' if library == 'mmdet' else case.precision
    case = replace(case, normalised=False, precision=precision)
    structures = importlib.import_module(f'{library}.structures')
    sample = structures.DetDataSample if library == 'mmdet' else structures.SegDataSample
    meta = dict(img_shape=case.size, ori_shape=case.size, scale_factor=(1.0, 1.0))
    samples = [sample(metainfo=dict(meta, pad_shape=case.size)) for _ in range(case.batch)]
    data = dict(inputs=list(case.images().clamp(0, 255).byte()), data_samples=samples)
    with torch.no_grad(), case.autocast():
        data = model.data_preprocessor(data, False)
        results = model(**data, mode='predict')
    assert len(results) == case.batch
    for result in results:
        if library == 'mmseg':
            assert result.pred_sem_seg.data.shape == (1, *case.size), case
            assert result.seg_logits.data.isfinite().all(), case
            continue
        found = result.pred_instances
        assert found.bboxes.isfinite().all() and found.scores.isfinite().all(), case
        limits = found.bboxes.new_tensor([*case.size[::-1]] * 2)
        assert ((found.bboxes >= 0) & (found.bboxes <= limits)).all(), case
        assert 'masks' not in found or found.masks.shape[1:] == case.size, case


@pytest.mark.parametrize('examples', [2, pytest.param(SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', HEADS)
def test_whole_models(name, examples):
    """From bytes to finished predictions."""
    config = Config.fromfile(CONFIGS / 'demo' / f'{name}.py')
    library = config.default_scope
    importlib.import_module(f'{library}.utils').register_all_modules(init_default_scope=False)
    use_scope(library)
    torch.manual_seed(0)
    model = MODELS.build(config.model).eval()
    fuzz(name, examples, lambda case: check_predictions(library, model, case))
