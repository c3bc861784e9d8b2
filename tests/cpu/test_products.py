"""Products of matrices by the faster of two libraries: the same values and gradients, and only where it may be."""

from __future__ import annotations

import platform

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from mmlape.cpu import linear as linear_module
from mmlape.cpu.linear import product
from mmlape.cpu.replace import Linear


@pytest.fixture
def calls(monkeypatch):
    """Whatever the size; counts the calls of oneDNN."""
    monkeypatch.setattr(linear_module, 'FEW', 1)
    made = []
    # A PyTorch without oneDNN computes the same by its own.
    known = linear_module.onednn_linear if torch.backends.mkldnn.is_available() else F.linear

    def count(*args):
        made.append(args)
        return known(*args)

    monkeypatch.setattr(linear_module, 'onednn_linear', count)
    return made


def linear(layer, x):
    """Of the parameters of PyTorch's."""
    return product(x, layer.weight, layer.bias)


@pytest.mark.parametrize('shape', [(7, 5), (2, 3, 5), (1, 2, 3, 4, 5), (0, 5), (2, 0, 5)])
@pytest.mark.parametrize(('out', 'bias'), [(3, True), (8, False)])
def test_it_is_the_layer_with_its_gradients(calls, shape, bias, out):
    layer = nn.Linear(5, out, bias)
    x = torch.randn(shape, requires_grad=True)
    wanted, found = layer(x), linear(layer, x)
    torch.testing.assert_close(found, wanted)
    inputs = [x, *layer.parameters()]
    grad = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(wanted, inputs, grad)
    )
    assert len(calls) == (3 if x.numel() else 0)  # of what is empty, PyTorch makes nothing either


def test_gradients_have_gradients(calls):
    layer = nn.Linear(4, 3)
    x = torch.randn(2, 5, 4, requires_grad=True)

    def penalty(result):
        (slope,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()])

    torch.testing.assert_close(penalty(linear(layer, x)), penalty(layer(x)))
    assert calls


def test_only_what_is_asked_for_is_computed(calls):
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    x = torch.randn(5, 4)
    linear(layer, x).sum().backward()
    assert len(calls) == 1 and layer.bias.grad.tolist() == [5.0] * 3
    with torch.inference_mode():
        torch.testing.assert_close(linear(layer, x), layer(x))


def test_gradients_of_any_layout(calls):
    """A sum's gradient has strides of 0, a transposed one has them in another order."""
    layer, x = nn.Linear(4, 3), torch.randn(2, 5, 4)
    for reduce in (torch.sum, lambda y: y.transpose(1, 2).contiguous().square().sum()):
        wanted, found = (
            torch.autograd.grad(reduce(y), layer.weight) for y in (layer(x), linear(layer, x))
        )
        torch.testing.assert_close(found, wanted)


def test_gaps_between_rows_are_closed(calls):
    """oneDNN takes a hundred times as long for a right matrix with gaps between its rows."""
    wide = torch.randn(11, 30, requires_grad=True)
    x, weight = wide[:, :8], torch.randn(30, 8, requires_grad=True)[::3]
    torch.testing.assert_close(product(x, weight), x @ weight.mT)
    product(x, weight).sum().backward()
    for _, read, _ in calls:
        assert read.is_contiguous() or read.mT.is_contiguous()


def test_a_graph_for_all_sizes_holds_it(calls):
    torch.compiler.reset()
    counters.clear()
    model = Linear(4, 3)
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True, dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 6, 4, requires_grad=True)
        inputs = [x, *model.parameters()]
        outputs = compiled(x), F.linear(x, model.weight, model.bias)
        torch.testing.assert_close(*outputs)
        torch.testing.assert_close(
            *(torch.autograd.grad(each.square().sum(), inputs) for each in outputs)
        )
    assert len(calls) == 6
    assert counters['stats']['unique_graphs'] == 1
    with torch.autocast('cpu', torch.bfloat16):
        assert compiled(x).dtype is torch.bfloat16
    assert len(calls) == 6


def test_in_a_graph_hooks_are_called(calls):
    torch.compiler.reset()
    model = Linear(4, 3)
    model.register_forward_hook(lambda module, args, output: output + 1)
    x = torch.randn(2, 4)
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(x), F.linear(x, model.weight, model.bias) + 1)


def test_who_looks_at_operators_sees_pytorchs(calls):
    layer, x = nn.Linear(4, 3).requires_grad_(False), torch.randn(2, 4)
    with FlopCounterMode(display=False) as counter:
        linear(layer, x)
    assert counter.get_total_flops() == 2 * 2 * 4 * 3
    torch.func.vmap(lambda row: linear(layer, row))(x)
    torch.func.jvp(lambda row: linear(layer, row), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        linear(layer, x)
    torch.jit.trace(lambda tokens: linear(layer, tokens), (x,), check_trace=False)
    torch.export.export(Linear(4, 3), (x,))
    linear(layer.to('meta'), x.to('meta'))
    assert not calls


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_vectors_other_types_and_autocast_are_pytorchs(calls, dtype):
    layer = nn.Linear(4, 3).to(dtype)
    for shape, autocast in (((4,), False), ((2, 4), True), ((2, 4), False)):
        x = torch.randn(shape, dtype=dtype)
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            torch.testing.assert_close(linear(layer, x), layer(x))
        assert len(calls) == (shape == (2, 4) and dtype == torch.float32 and not autocast)


def test_small_products_are_pytorchs(calls, monkeypatch):
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    monkeypatch.setattr(linear_module, 'FEW', 25)
    linear(layer, x)
    assert not calls
    linear(layer, torch.randn(3, 4))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ('text', 'capability', 'expected'),
    [
        ('vendor_id\t: AuthenticAMD', 'AVX512', True),
        ('vendor_id\t: AuthenticAMD', 'AVX2', False),
        ('vendor_id\t: GenuineIntel', 'AVX512', False),
    ],
)
def test_which_processors(monkeypatch, text, capability, expected):
    monkeypatch.setattr(torch.backends.mkl, 'is_available', lambda: True)
    monkeypatch.setattr(linear_module, 'has_onednn_linear', lambda: True)
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: capability)
    monkeypatch.setattr(linear_module, 'processor', lambda: text)
    assert linear_module.is_faster_here.__wrapped__() is expected


def test_a_processors_maker_is_known():
    if platform.machine() in ('x86_64', 'AMD64'):
        makers = ('GenuineIntel', 'Authentic', 'Hygon')
        assert any(maker in linear_module.processor() for maker in makers)
    else:
        assert isinstance(linear_module.processor(), str)
