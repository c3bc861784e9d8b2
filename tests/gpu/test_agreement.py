"""Outputs and gradients on the GPU beside those of the CPU in float32."""

import copy

import pytest
import torch
from agreement import PUBLISHED, SCALE, TOLERANCES, autocast, check, differences, randomised, step
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttention
from registered import BACKBONES

from mmlape import gpu
from mmlape.cpu import optimize
from mmlape.layers import replace_deformable_attention
from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.registry import MODELS

# Tokens share a bucket or not: another rounding, another output.
DISCRETE = 'LSHAttention'
every_dtype = pytest.mark.parametrize('dtype', TOLERANCES)


def agree(model, moved, inputs, device, dtype, record_property, scale=SCALE):
    """Compare ``moved``, on the device, with ``model``."""
    wanted = step(model, *inputs, scale=scale)
    with autocast(device, dtype):
        found = step(moved, *[each.to(device) for each in inputs], scale=scale)
    check(differences(found, wanted), dtype, record_property)


@pytest.mark.parametrize('name', BACKBONES)
@every_dtype
def test_every_component(dtype, name, device, record_property):
    """A micro network for every component: evaluation beside the CPU's, then a pass in training mode."""
    model = randomised(BACKBONES[name]()).eval()
    moved, images = copy.deepcopy(model).to(device), torch.randn(2, 3, 41, 57)
    if name != DISCRETE or dtype == 'float32':
        agree(model, moved, (images,), device, dtype, record_property)
    with autocast(device, dtype):
        outputs, gradients = step(moved.train(), images.to(device), scale=1)
    assert all(each.isfinite().all() for each in (*outputs, *gradients.values()))


@pytest.mark.parametrize('name', PUBLISHED)
@every_dtype
def test_published_sizes(dtype, name, device, record_property):
    """Networks of published sizes."""
    model = randomised(MODELS.build(PUBLISHED[name]), 0.01).eval()
    # A compact transformer's attention is between a quarter of all pixels.
    small = device.type == 'cpu' or name == 'compact'
    inputs = (torch.randn((1, 3, 64, 96) if small else (2, 3, 224, 333)),)
    moved = copy.deepcopy(model).to(device)
    # Of so many outputs, gradients of their mean would vanish in float16.
    agree(model, moved, inputs, device, dtype, record_property, scale=2**14)


@pytest.mark.parametrize('batch', [1, 3])
@every_dtype
def test_deformable_attention_of_heads(dtype, batch, device, record_property):
    """MMCV's operator for deformable attention beside PyTorch's form (on a CPU: our operator)."""
    model = randomised(MultiScaleDeformableAttention(64, 4, 3, 4, dropout=0.0, batch_first=True))
    replace = optimize if device.type == 'cpu' else replace_deformable_attention
    moved = replace(copy.deepcopy(model)).to(device)
    shapes = torch.tensor([(23, 31), (12, 16), (6, 8)])
    starts = torch.tensor([0, 23 * 31, 23 * 31 + 12 * 16])
    values, queries = torch.randn(batch, 23 * 31 + 12 * 16 + 6 * 8, 64), torch.randn(batch, 17, 64)

    class Called(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, queries, values, points, shapes, starts):
            return self.inner(
                queries,
                value=values,
                reference_points=points,
                spatial_shapes=shapes,
                level_start_index=starts,
            )

    inputs = queries, values, torch.rand(batch, 17, 3, 2), shapes, starts
    agree(Called(model), Called(moved), inputs, device, dtype, record_property)


# Height, width, channels, heads, tokens per side of a cell and prefix tokens.
GRIDS = (
    (56, 56, 64, 4, 4, 0),
    (57, 43, 96, 3, 4, 0),
    (14, 17, 320, 5, 1, 1),
    (7, 9, 768, 16, 2, 2),
    (200, 304, 64, 1, 1, 0),
)


@pytest.mark.parametrize('sizes', GRIDS)
@every_dtype
def test_dtn_by_kernels(dtype, sizes, device, record_property):
    """DTN by Triton kernels beside PyTorch's operators (on a CPU: those too)."""
    height, width, channels, heads, pool, prefix = sizes
    model = randomised(DTN(channels, heads, pool=pool))
    moved = gpu.optimize(copy.deepcopy(model)).to(device)
    assert type(moved) is not DTN

    class OnGrid(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def forward(self, tokens):
            return self.norm(tokens, Layout((height, width), prefix))

    tokens = torch.randn(2, prefix + height * width, channels)
    agree(OnGrid(model), OnGrid(moved), (tokens,), device, dtype, record_property)
