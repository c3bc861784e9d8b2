"""Images of any size and any content: shapes are right, and finite pixels give finite outputs and gradients.

Hypothesis draws the cases, each network's from a seed of its own, so that they are the same in every run.
"""

import math
import zlib
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from backbone_variants import VARIANTS
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from registered import BACKBONES
from torch import nn
from torch.utils._pytree import tree_leaves

from mmlape.backbones import SequenceTransformer, ViTAdapter

FAST, SLOW = 4, 24
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
    """A network without the initial values that hide errors, which are all alike or zero."""
    torch.manual_seed(0)
    model = build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def expected_shapes(model, batch, size):
    """Of all outputs, one after the other."""
    if isinstance(model, ViTAdapter):
        strides = [4 * 2**index for index in model.out_indices]
        return [(batch, model.embed_dims, *(math.ceil(side / s) for side in size)) for s in strides]
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


def fuzz(name, build, examples):
    model, done = micro(build), []

    @seed(zlib.crc32(name.encode()))
    @settings(SETTINGS, max_examples=examples)
    @given(cases)
    def run(case):
        check(model, case)
        done.append(case)

    run()
    assert len(set(done)) >= 0.75 * examples


@pytest.mark.parametrize('name', BACKBONES)
def test_every_component(name):
    fuzz(name, BACKBONES[name], FAST)


@pytest.mark.slow
@pytest.mark.parametrize('name', BACKBONES)
def test_every_component_often(name):
    fuzz(f'{name} often', BACKBONES[name], SLOW)


@pytest.mark.slow
@pytest.mark.parametrize('name', VARIANTS)
def test_every_variant_often(name):
    fuzz(name, VARIANTS[name], SLOW)


def test_how_many():
    assert 0.75 * len(BACKBONES) * FAST >= 99
    assert 0.75 * (len(BACKBONES) + len(VARIANTS)) * SLOW >= 2000


# Token ids are whole numbers.
OF_SEQUENCES = ('LSHAttention', 'SequenceTransformer', 'TokenEmbed')


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('name', [name for name in BACKBONES if name not in OF_SEQUENCES])
def test_pixels_that_are_not_finite(name, value):
    """The image's outputs are not finite either: nothing passes for a result. In evaluation other images of the batch
    are what they would be."""
    model = micro(BACKBONES[name]).eval()
    images = torch.randn(2, 3, 40, 33, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = tree_leaves(model(images))
        images[0, 1, 5, 7] = value
        after = tree_leaves(model(images))
    assert not all(output[0].isfinite().all() for output in after)
    for output, expected in zip(after, before, strict=True):
        torch.testing.assert_close(output[1], expected[1], rtol=1e-5, atol=1e-5)
