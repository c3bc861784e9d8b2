"""The cache per grid: its limit, the modes in which nothing may be cached, and what models keep between images."""

import gc
import sys

import pytest
import torch
from backbone_variants import ATTENTION_POSITIONS, build_vit
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mmlape.layout import MAX_BYTES, GridCache, cached


@cached
def ramp(length):
    """0, 1, ... as a tensor."""
    return torch.arange(length)


@pytest.fixture(autouse=True)
def empty_cache():
    ramp.cache.clear()


def test_hits_and_the_limit(monkeypatch):
    """The least recently used are evicted, and a value above the limit is not cached."""
    first = ramp(3)
    assert ramp(3) is first and ramp.cache.num_bytes() == 3 * 8
    assert ramp(length=3) is ramp(length=3) is not first
    monkeypatch.setattr(ramp.cache, 'max_bytes', 9 * 8)
    assert ramp(3) is first
    ramp(4)  # length=3 was used before
    assert len(ramp.cache) == 2 and ramp(3) is first
    assert ramp(10) is not ramp(10) and len(ramp.cache) == 2
    with FlopCounterMode(display=False):
        assert ramp(3) is ramp(3)


def test_inference_mode_serves_training():
    with torch.inference_mode():
        ramp(3)
    assert not ramp(3).is_inference()


def test_nothing_without_values_is_cached():
    with FakeTensorMode():
        assert type(ramp(3)) is not torch.Tensor
    assert type(ramp(3)) is torch.Tensor
    assert ramp(3).tolist() == [0, 1, 2]
    with FakeTensorMode():  # nor handed out where all others are without
        assert type(ramp(3)) is not torch.Tensor


@pytest.mark.parametrize('way', ['compile', 'export', 'export strict'])
def test_a_traced_graph_caches_nothing(way):
    class Add(torch.nn.Module):
        def forward(self, x):
            return x + ramp(3)

    x = torch.ones(3)
    if way == 'compile':
        traced = torch.compile(Add(), fullgraph=True, backend='eager')
    else:
        traced = torch.export.export(Add(), (x,), strict='strict' in way).module()
    assert traced(x).tolist() == [1, 2, 3]
    assert len(ramp.cache) == 0


SIZES = [(4 * (8 + i), 4 * (27 - i)) for i in range(0, 20, 3)]
MODELS = {
    'lape': dict(joining=dict(type='mmlape.LaPE')),
    'shared': dict(joining=dict(type='mmlape.SharedJoining')),
    'relative': dict(
        attention_position=ATTENTION_POSITIONS['relative'], window_size=[2, None, None, (2, 3)]
    ),
    'gabor': dict(attention_position=ATTENTION_POSITIONS['gabor']),
    'rotary, DTN': dict(
        position=dict(type='mmlape.SinusoidalPosition', axes=2),
        attention_position=dict(type='mmlape.RotaryPosition'),
        norm_cfg=dict(type='mmlape.DTN'),
    ),
}


def caches():
    """Of all functions that cache what depends on sizes alone."""
    modules = [module for name, module in sys.modules.items() if name.startswith('mmlape')]
    found = [getattr(each, 'cache', None) for module in modules for each in vars(module).values()]
    return [each for each in found if isinstance(each, GridCache)]


def num_bytes(tensors):
    """Of their storages."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize(
    'options',
    [
        pytest.param(options, id=name, marks=() if name == 'rotary, DTN' else pytest.mark.slow)
        for name, options in MODELS.items()
    ],
)
@pytest.mark.parametrize(
    'mode', [torch.no_grad, pytest.param(torch.inference_mode, marks=pytest.mark.slow)]
)
def test_evaluation_of_many_sizes_keeps_nothing(options, mode):
    """A single relative bias of such a grid has more than a megabyte."""
    stores = caches()
    assert stores and all(store.max_bytes <= MAX_BYTES <= 2**26 for store in stores)
    model = build_vit(**options, patch_size=4).eval()
    with mode():
        model(torch.randn(1, 3, *SIZES[-1]))
        gc.collect()
        gc.freeze()  # what is there by now is not among the objects below
        for size in SIZES:
            model(torch.randn(1, 3, *size))
    for store in stores:
        store.clear()
    gc.collect()
    assert (
        num_bytes(each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)) < 2**16
    )
