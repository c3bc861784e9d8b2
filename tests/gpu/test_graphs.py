"""Blocks by torch.compile, and whole networks as CUDA graphs."""

import copy
import time
from functools import partial

import pytest
import torch
from agreement import LAPE, PUBLISHED, check, differences, randomised, step
from registered import adapter, pvt, vit
from torch._dynamo.utils import counters

from benchmarks.side_by_side import interleaved
from mmlape.registry import MODELS

STILL = dict(drop_rate=0.0, drop_path_rate=0.0)
# How to build a network, and its kinds of blocks: each is one graph.
KINDS = {
    'vit': (vit(**LAPE, **STILL), 1),
    'pvt': (pvt(norm_cfg=dict(type='mmlape.DTN', num_heads=2), **STILL), 4),
    'adapter': (adapter(**LAPE, **STILL), 3),
}
SIZES = [(64, 96), (96, 128), (128, 64), (160, 192)]


@pytest.mark.parametrize('name', KINDS)
def test_compiled_blocks(name, device, record_property):
    """torch.compile of blocks: no graph breaks, no graph for another size (on a CPU: graphs without code for them)."""
    torch._dynamo.reset()
    counters.clear()
    build, kinds = KINDS[name]
    way = dict(backend='eager') if device.type == 'cpu' else True
    plain, compiled = build().to(device), build(compile_blocks=way).to(device)
    compiled.load_state_dict(randomised(plain.cpu()).to(device).state_dict())
    found = []
    for size in SIZES:
        images = torch.randn(2, 3, *size, device=device)
        found.append(differences(step(compiled, images), step(plain, images)))
    breaks, graphs = sum(counters['graph_break'].values()), counters['stats']['unique_graphs']
    for key, value in (('breaks', breaks), ('graphs', graphs), ('kinds of blocks', kinds)):
        record_property(key, value)
    check(tuple(map(max, zip(*found, strict=True))), 'float32', record_property)
    assert breaks == 0 and graphs == kinds


@pytest.mark.parametrize('name', ['vit', 'pvt'])
def test_speed_of_compiled_blocks(name, gpu, record_property):
    """Milliseconds of a training step in bfloat16, 8 images of 512 x 512, without and with compiled blocks."""
    models = {
        'plain': MODELS.build(PUBLISHED[name]).to(gpu),
        'compiled': MODELS.build(dict(PUBLISHED[name], compile_blocks=True)).to(gpu),
    }
    images = torch.randn(8, 3, 512, 512, device=gpu)

    def train(model):
        with torch.autocast('cuda', torch.bfloat16):
            outputs = model(images)
        sum(each.square().mean() for each in outputs).backward()

    record_times({key: partial(train, model) for key, model in models.items()}, record_property)


@pytest.mark.parametrize('name', PUBLISHED)
def test_cuda_graph(name, gpu, record_property):
    """Forward and backward pass as CUDA graphs: the same outputs and gradients; milliseconds for one image."""
    model = randomised(MODELS.build(PUBLISHED[name]), 0.01).to(gpu).eval()
    images = torch.randn(1, 3, 224, 320, device=gpu)
    graphed = torch.cuda.make_graphed_callables(
        copy.deepcopy(model), (torch.randn_like(images),), allow_unused_input=True
    )
    found = differences(step(graphed, images), step(model, images))
    calls = {'plain': partial(step, model, images), 'graph': partial(step, graphed, images)}
    record_times(calls, record_property)
    check(found, 'float32', record_property)


def record_times(calls, record_property):
    """In turns, by the wall clock."""
    for key, times in interleaved(calls, repeats=5, clock=time.perf_counter).items():
        record_property(f'{key}, ms', times['median_ms'])
