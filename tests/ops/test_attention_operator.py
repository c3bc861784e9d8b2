"""Attention's operator in C++: PyTorch's values and gradients at any size, and only where it may be."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmlape.layers import Attention
from mmlape.ops import attention, library

room = sys.modules['mmlape.ops.attention']  # the package's name is the function's


@pytest.fixture
def calls(monkeypatch, switched_on):
    """As on such a processor, whatever the size; counts the calls of C++."""
    monkeypatch.setattr(room, '_is_for_this_processor', lambda: True)
    monkeypatch.setattr(room, 'FEW', 1)
    monkeypatch.setattr(room, 'FEW_FOR_GRADIENTS', 1)
    made = []
    known = library.call

    def count(name, *args):
        made.append(name)
        return known(name, *args)

    monkeypatch.setattr(library, 'call', count)
    return made


def heads(*sizes, channels=5, together=1):
    """(B, heads, tokens, D) of several numbers of tokens, as layers cut them out of projections."""
    return [
        torch.randn(2, size, together * 3 * channels)[..., : 3 * channels]
        .unflatten(-1, (3, channels))
        .transpose(1, 2)
        .requires_grad_()
        for size in sizes
    ]


def in_float64(query, key, value, scale):
    scores = scale * query.double() @ key.double().mT
    return (scores.softmax(dim=-1) @ value.double()).float()


# One token, less than a vector, blocks of queries and of keys with and without rest; channels are no tiles.
@pytest.mark.parametrize('queries', [1, 7, 32, 65])
@pytest.mark.parametrize('keys', [1, 8, 49, 256, 600])
@pytest.mark.parametrize('channels', [1, 8, 20, 64])
def test_it_is_softmax_attention(calls, queries, keys, channels):
    query, key, value = heads(queries, keys, keys, channels=channels)
    wanted = in_float64(query, key, value, 0.3)
    found = attention(query, key, value, 0.3)
    assert found.shape == wanted.shape and found.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)
    grad = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found, (query, key, value), grad),
        torch.autograd.grad(wanted, (query, key, value), grad),
        rtol=1e-4,
        atol=1e-5,
    )
    assert calls == ['attention', 'attention_backward']


@pytest.mark.parametrize('together', [1, 3])
@pytest.mark.parametrize('reduce', [torch.sum, lambda read: (read**2).sum()])
def test_gradients(calls, together, reduce):
    inputs = heads(40, 300, 300, together=together)
    wanted = torch.autograd.grad(reduce(in_float64(*inputs, 0.4)), inputs)
    found = torch.autograd.grad(reduce(attention(*inputs, 0.4)), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert calls == ['attention', 'attention_backward']


@pytest.mark.parametrize('few', [300, 301])
def test_few_keys_get_pytorchs_gradients(calls, monkeypatch, few):
    """From what the operator returns beside the result."""
    inputs = heads(40, 300, 300)
    monkeypatch.setattr(room, 'FEW_FOR_GRADIENTS', few)
    found = torch.autograd.grad(attention(*inputs, 0.4).square().sum(), inputs)
    wanted = torch.autograd.grad(in_float64(*inputs, 0.4).square().sum(), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert ('attention_backward' in calls) is (few == 300)


@pytest.mark.parametrize('keys', [1, 127])
def test_few_keys_are_pytorchs_in_a_graph_too(switched_on, monkeypatch, keys):
    """The same bits as in eager mode, in what a graph for any number of keys holds."""
    inputs = [each.detach() for each in heads(9, keys, keys)]
    found, sums = torch.ops.mmlape.attention(*inputs, 0.4)
    assert torch.equal(found, F.scaled_dot_product_attention(*inputs, scale=0.4))
    query, key, _ = inputs
    torch.testing.assert_close(sums, (0.4 * query @ key.mT).logsumexp(dim=-1))
    torch.library.opcheck(torch.ops.mmlape.attention, (*inputs, 0.4))


def test_logarithms_of_sums(calls):
    query, key, value = heads(9, 300, 300)
    _, sums = torch.ops.mmlape.attention(query, key, value, 2.0)
    torch.testing.assert_close(sums, (2 * query @ key.mT).logsumexp(dim=-1))


def test_scores_that_rise_and_fall_by_much(calls):
    """Blocks of keys far above and below the ones before: nothing overflows, nothing is lost."""
    query, key, value = heads(33, 1024, 1024)
    factor = torch.tensor([1e-3, 30.0, 1.0, 300.0]).repeat_interleave(256)
    key = key * factor[:, None]
    for keys in (key, key.flip(2)):
        found, wanted = (each(query, keys, value, 1.0) for each in (attention, in_float64))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        to_value, expected = (torch.autograd.grad(each.sum(), value)[0] for each in (found, wanted))
        torch.testing.assert_close(to_value, expected, rtol=1e-2, atol=1e-2)
        assert (
            torch.autograd.grad(attention(query, keys, value, 1.0).sum(), query)[0].isfinite().all()
        )


@pytest.mark.parametrize('which', range(3))
@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_what_is_not_finite_is_seen(calls, which, bad):
    inputs = [each.detach().clone() for each in heads(5, 300, 300)]
    inputs[which][0, 1, 3, 2] = bad
    found, wanted = attention(*inputs, 1.0), in_float64(*inputs, 1.0)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert found.isfinite().any() and not found.isfinite().all()


def test_any_strides(calls):
    query, key, value = heads(6, 12, 12)
    found = attention(query.mT.contiguous().mT, key[:1].expand(2, -1, -1, -1), value, 1.0)
    torch.testing.assert_close(found, in_float64(query, key[:1].expand(2, -1, -1, -1), value, 1.0))


def test_threads_do_not_change_a_bit(calls):
    inputs = heads(70, 300, 300)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            read = attention(*inputs, 1.0)
            found.append([read, *torch.autograd.grad(read.square().sum(), inputs)])
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def test_a_layer_runs_it_in_evaluation_and_training(calls):
    layer = Attention(8, 2)
    tokens = torch.randn(1, 12, 8)
    for mode in (True, False):
        layer.train(mode)(tokens, (3, 4)).sum().backward()
    assert calls == ['attention', 'attention_backward'] * 2
    Attention(8, 2, attn_drop_rate=0.5)(tokens, (3, 4))
    assert len(calls) == 4


def test_a_graph_for_all_sizes_holds_it(calls):
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(attention, backend='aot_eager', fullgraph=True, dynamic=True)
    for size in (40, 50):
        inputs = heads(size, size + 3, size + 3)
        outputs = compiled(*inputs, 0.5), attention(*inputs, 0.5)
        torch.testing.assert_close(*outputs)
        torch.testing.assert_close(
            *(torch.autograd.grad(each.square().sum(), inputs) for each in outputs)
        )
    assert sorted(calls) == ['attention'] * 4 + ['attention_backward'] * 4
    assert counters['stats']['unique_graphs'] == 1


def test_pytorch_knows_the_operators(switched_on):
    inputs = heads(9, 300, 300)
    torch.library.opcheck(torch.ops.mmlape.attention, (*inputs, 0.5))
    detached = [each.detach() for each in inputs]
    results = torch.ops.mmlape.attention(*detached, 0.5)
    torch.library.opcheck(
        torch.ops.mmlape.attention_backward,
        (torch.randn_like(results[0]), *detached, *results, 0.5),
    )


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


class Listening(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.heard = function is F.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


def test_who_looks_at_operators_sees_pytorchs(calls):
    inputs = [each.detach() for each in heads(4, 6, 6)]
    with Operators() as operators:
        attention(*inputs, 1.0)
    assert 'aten._scaled_dot_product_flash_attention_for_cpu' in operators.seen
    with Listening() as listening:
        attention(*inputs, 1.0)
    assert listening.heard
    torch.func.vmap(lambda *each: attention(*each, 1.0))(*(each[:, None] for each in inputs))
    with torch.autograd.forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        attention(*inputs, 1.0)
    torch.jit.trace(lambda *each: attention(*each, 1.0), inputs, check_trace=False)
    torch.export.export(Attention(8, 2), (torch.randn(1, 12, 8), (3, 4)))
    attention(*(each.to('meta') for each in inputs), 1.0)
    assert not calls


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_pytorchs(calls, dtype):
    assert attention(*(each.to(dtype) for each in heads(4, 6, 6)), 1.0).dtype is dtype
    assert not calls


def test_autocast_is_pytorchs(calls):
    with torch.autocast('cpu', torch.bfloat16):
        assert attention(*heads(4, 6, 6), 1.0).dtype is torch.bfloat16
    assert not calls


def test_switches(calls, monkeypatch):
    inputs = heads(4, 6, 6)
    with sdpa_kernel(SDPBackend.MATH):
        attention(*inputs, 1.0)
    assert not calls
    monkeypatch.setattr(room, 'FEW', 7)
    attention(*inputs, 1.0)
    assert not calls
    attention(*heads(4, 7, 7), 1.0)
    assert calls == ['attention']


@pytest.mark.parametrize(('slow', 'lanes'), [(True, 16), (False, 16), (True, 4)])
def test_which_processors(monkeypatch, slow, lanes):
    class Core:
        attention_lanes = staticmethod(lambda: lanes)

    monkeypatch.setattr(room, 'mkl_leaves_avx512_aside', lambda: slow)
    monkeypatch.setattr(library, 'library', lambda: (Core, ''))
    asked = room._is_for_this_processor.__wrapped__
    assert asked() is (slow and lanes == 16)
    monkeypatch.setattr(library, 'library', lambda: (None, 'switched off'))
    assert not asked()


def test_what_does_not_fit_is_refused(switched_on):
    query, key, value = heads(4, 6, 6)
    for wrong in (
        (query, key, value[:, :, :5]),
        (query, key[:1], value[:1]),
        (query, key[..., :4], value[..., :4]),
        (query, key[:, :, :0], value[:, :, :0]),
        (query.double(), key.double(), value.double()),
    ):
        with pytest.raises(ValueError, match='do not fit: got'):
            torch.ops.mmlape.attention(*wrong, 1.0)
