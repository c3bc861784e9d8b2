"""Linear layers by the faster library: PyTorch's to everyone else."""

import pytest
import torch
from torch import nn

from mmlape.layers import DeformableAttention, Mlp
from mmlape.layers import basic as room
from mmlape.layers.basic import Linear, make_faster


@pytest.fixture
def calls(monkeypatch):
    """Of the product."""
    made, known = [], room.product

    def count(*args):
        made.append(args)
        return known(*args)

    monkeypatch.setattr(room, 'product', count)
    return made


def test_the_layer_is_pytorchs_with_hooks_and_the_same_bits(calls):
    layer, seen = Linear(4, 3), []
    assert layer.state_dict().keys() == nn.Linear(4, 3).state_dict().keys()
    x = torch.randn(2, 4)
    expected = layer(x)
    layer.register_forward_hook(lambda *args: seen.append('forward'))
    assert torch.equal(layer(x), expected)
    assert seen == ['forward'] and len(calls) == 2


def test_layers_of_others_become_faster(calls):
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), Twice(4, 4))
    weights, x = [*model.parameters()], torch.randn(2, 4)
    expected = model(x)
    make_faster(model)
    assert [type(part) for part in model.modules() if isinstance(part, nn.Linear)] == [
        Linear, Linear, Twice,
    ]  # fmt: skip
    assert all(a is b for a, b in zip(model.parameters(), weights, strict=True))
    torch.testing.assert_close(model(x), expected)
    assert len(calls) == 2
    for built in (Mlp(8, 16), DeformableAttention(16, 2)):
        assert nn.Linear not in map(type, built.modules())
