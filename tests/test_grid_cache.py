"""The cache per grid: its limit, and the modes in which nothing may be cached."""

import pytest
import torch
from backbone_variants import build_adapter, build_vit
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mmlape.layout import cached


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
    ramp(10)
    assert len(ramp.cache) == 0
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


@pytest.mark.parametrize('build', [build_vit, build_adapter])
def test_a_model_works_after_a_pass_without_values(build):
    """What it keeps is real as well."""
    model, image = build().eval(), torch.randn(1, 3, 80, 48)
    with torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True):
            model(torch.empty(1, 3, 80, 48))
        assert all(output.isfinite().all() for output in model(image))
