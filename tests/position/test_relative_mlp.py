"""A relative bias by a small network: how often it runs, and that what is shared is the same."""

import pytest
import torch
from backbone_variants import build_vit

from mmlape.position import RelativePositionMlp


def calls_of(model):
    """A list that grows with every run of a relative position's network."""
    calls = []
    for module in model.modules():
        if isinstance(module, RelativePositionMlp):
            module.mlp.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize(
    ('name', 'options', 'count'),
    [
        ('SharedRelativePositionMlp', {}, 1),
        ('SharedRelativePositionMlp', dict(with_cp=True), 1),
        # Two layers with windows have offsets of their own.
        ('SharedRelativePositionMlp', dict(window_size=[2, None, 2, None]), 3),
        ('RelativePositionMlp', {}, 4),
    ],
)
def test_runs(name, options, count):
    model = build_vit(attention_position=dict(type=f'mmlape.{name}'), **options).train()
    assert len(model.blocks) == 4
    calls = calls_of(model)
    model(torch.randn(1, 3, 32, 48))[-1].sum().backward()
    assert len(calls) == count
    mlp = (model.inside if name.startswith('Shared') else model.blocks[0].attn.position).mlp
    assert mlp.fc1.weight.grad.abs().sum() > 0


@pytest.mark.parametrize('name', ['SharedRelativePositionMlp', 'SharedRelativePositionBias'])
def test_what_is_prepared_is_what_a_layer_makes(name):
    model = build_vit(attention_position=dict(type=f'mmlape.{name}')).eval()
    torch.nn.init.normal_(next(model.inside.parameters()))
    image = torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        expected = model(image)[-1]
        model.inside.bias_with = lambda rows, query, key: model.inside.bias(query, key)
        torch.testing.assert_close(model(image)[-1], expected, rtol=0, atol=0)
