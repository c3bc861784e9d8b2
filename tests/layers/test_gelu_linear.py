"""GELU and the linear layer after it: the values and gradients of the two, with one tensor kept in place of two."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils import parametrize

from mmlape.layers import Mlp
from mmlape.layers.mlp import gelu_linear


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parts(approximate='none', bias=True, **options):
    torch.manual_seed(0)
    linear = nn.Linear(5, 3, bias=bias, **options)
    return nn.GELU(approximate), torch.randn(2, 4, 5, requires_grad=True, **options), linear


def kept(call):
    """How many tensors autograd keeps of what ``call`` computes, those of the argument's size."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.numel()) or t, lambda t: t
    ):
        call()
    return sizes.count(40)


@pytest.mark.parametrize('approximate', ['none', 'tanh'])
@pytest.mark.parametrize('bias', [True, False])
def test_gradients(approximate, bias):
    act, hidden, linear = parts(approximate, bias, dtype=torch.float64)
    inputs = (hidden, *linear.parameters())
    expected = linear(act(hidden))
    torch.testing.assert_close(gelu_linear(act, hidden, linear), expected, rtol=0, atol=0)

    def call(hidden, *_):
        return gelu_linear(act, hidden, linear)

    assert kept(lambda: call(hidden)) == 1 and kept(lambda: linear(act(hidden))) == 2
    assert gradcheck(call, inputs) and gradgradcheck(call, inputs)


def test_autocast_gives_what_two_modules_give():
    act, hidden, linear = parts()
    found, low = [], hidden.bfloat16()
    for call in (gelu_linear, lambda act, hidden, linear: linear(act(hidden))):
        linear.zero_grad()
        with torch.autocast('cpu', dtype=torch.bfloat16):
            out = call(act, low, linear)
        out.float().square().sum().backward(retain_graph=True)
        found.append((out, linear.weight.grad, linear.bias.grad))
    assert found[0][0].dtype == torch.bfloat16 and found[0][1].dtype == torch.float32
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)


def test_whoever_listens_to_the_linear_layer_hears_it():
    act, hidden, linear = parts()
    heard = []
    handle = linear.register_forward_hook(lambda module, inputs, out: heard.append(inputs[0]))
    gelu_linear(act, hidden, linear)
    assert torch.equal(heard[0], act(hidden))
    handle.remove()
    with_global_hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, out: heard.append(module)
    )
    gelu_linear(act, hidden, linear)
    with_global_hook.remove()
    assert heard[1:] == [act, linear]
    linear.forward = lambda inputs: heard.append(inputs) or nn.Linear.forward(linear, inputs)
    gelu_linear(act, hidden, linear)
    assert torch.equal(heard[3], act(hidden))
    del linear.forward
    parametrize.register_parametrization(linear, 'weight', Doubled())
    assert torch.equal(gelu_linear(act, hidden, linear), linear(act(hidden)))


def test_is_called_as_it_is_where_nothing_is_saved_by_it():
    act, hidden, linear = parts()
    linear.weight.requires_grad_(False)  # what it reads is not kept then
    assert type(gelu_linear(act, hidden, linear).grad_fn).__name__ != '_GeluLinearBackward'
    linear.weight.requires_grad_(True)
    assert type(gelu_linear(act, hidden, linear).grad_fn).__name__ == '_GeluLinearBackward'
    tangent = torch.func.jvp(lambda x: gelu_linear(act, x, linear), (hidden,), (hidden,))[1]
    assert torch.isfinite(tangent).all()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(hidden, hidden.detach())
        out = torch.autograd.forward_ad.unpack_dual(gelu_linear(act, dual, linear))
    torch.testing.assert_close(out.tangent, tangent)
    meta = [part.to('meta') for part in parts()]
    assert gelu_linear(*meta).shape == (2, 4, 3)
    per_image = torch.func.vmap(torch.func.grad(lambda x: gelu_linear(act, x, linear).sum()))(
        hidden
    )
    (expected,) = torch.autograd.grad(gelu_linear(act, hidden, linear).sum(), hidden)
    torch.testing.assert_close(per_image, expected)


@pytest.mark.parametrize('options', [dict(drop_rate=0.5), dict(norm_cfg=dict(type='mmlape.LN'))])
def test_feed_forward_network_with_something_between(options):
    """It stays between: dropout of what the second layer reads, or a norm of it."""
    mlp, heard = Mlp(4, 8, **options), []
    mlp.fc2.register_forward_pre_hook(lambda module, inputs: heard.append(inputs[0]))
    tokens = torch.randn(2, 9, 4)
    mlp(tokens)
    plain = mlp.act(mlp.fc1(tokens))
    assert not torch.allclose(heard[0], plain)
