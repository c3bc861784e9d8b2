"""Position inside the attention: what eq. 6 of DTN says, how often small networks run."""

import pytest
import torch
from backbone_variants import build_vit

from mmlape.layers import Attention, ShiftedWindowAttention
from mmlape.layout import Layout
from mmlape.position import (
    GaborAttention,
    QuadraticBias,
    RelativePositionBias,
    RelativePositionMlp,
    RotaryPosition,
    relative_bias,
)
from mmlape.position.rotary import _coordinates


def written_out(weight, grid):
    """``R a``, ``(heads, N, N)``, a pair of cells at a time."""
    cells = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    R = [[(xi - xj, yi - yj, (xi - xj) ** 2 + (yi - yj) ** 2) for yj, xj in cells] for yi, xi in cells]  # fmt: skip
    return (torch.tensor(R, dtype=weight.dtype) @ weight.T).permute(2, 0, 1)


def randomised(heads=2, **options):
    position = QuadraticBias(4 * heads, heads, (3, 4), **options)
    torch.nn.init.normal_(position.scores.weight)
    return position


@pytest.mark.parametrize('grid', [(3, 4), (1, 5), (6, 2), (1, 1)])
def test_is_equation_6(grid):
    position = randomised().double()
    expected = written_out(position.scores.weight, grid)
    torch.testing.assert_close(position.bias(Layout(grid), Layout(grid))[0], expected)


def test_half_precision_knows_its_offsets():
    position = randomised()
    layout = Layout((60, 2))
    expected = position.bias(layout, layout)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert torch.equal(position.bias(layout, layout), expected)
    assert position.bfloat16().bias(layout, layout).dtype == torch.float32


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


@pytest.mark.parametrize('step', [1, 2])
def test_a_bias_within_a_window_is_made_at_once(step, monkeypatch):
    """As axis by axis, with rows that begin where attention kernels on GPUs read them without a copy."""
    position, window = RelativePositionBias(8, 2, (3, 5), std=1), Layout((3, 5))
    found = position.bias(window, step=step)
    *steps, last = found.stride()
    assert last == 1 and not any(each % 8 for each in steps)
    monkeypatch.setattr(relative_bias, 'FEW', 0)
    expected = position.bias(window, step=step)
    assert torch.equal(found, expected)
    grad, table = torch.randn_like(expected), position.relative_position_bias_table
    gradients = [torch.autograd.grad(each, table, grad)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize('name', ['SharedRelativePositionMlp', 'SharedRelativePositionBias'])
def test_what_is_prepared_is_what_a_layer_makes(name):
    model = build_vit(attention_position=dict(type=f'mmlape.{name}')).eval()
    torch.nn.init.normal_(next(model.inside.parameters()))
    image = torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        expected = model(image)[-1]
        bias = model.inside.bias
        model.inside.bias = lambda query, key, rows: bias(query, key)
        torch.testing.assert_close(model(image)[-1], expected, rtol=0, atol=0)


def test_prefix_tokens_that_see_all_have_their_scores_beside_windows():
    sizes, layers = (8, 2, (4, 6), 2), []
    for window in (None, 2):
        position = RelativePositionBias(*sizes, window, prefix_scores=True)
        layers.append(Attention(8, 2, window_size=window, position=position))
    whole, windowed = layers
    torch.nn.init.normal_(whole.position.prefix_table, std=3)
    windowed.position.prefix_table = whole.position.prefix_table
    windowed.qkv, windowed.proj = whole.qkv, whole.proj
    tokens = torch.randn(3, 2 + 24, 8)
    found, expected = (layer(tokens, Layout((4, 6), 2))[:, :2] for layer in (windowed, whole))
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert windowed.position.prefix_table.grad[[0, 2]].abs().sum() > 0


@pytest.mark.parametrize(
    'position',
    [
        RotaryPosition(8, 2, (3, 4), coordinates='centred'),
        GaborAttention(8, 2, (3, 4), parts='4', value='LE'),
    ],
    ids=['rotary', 'gabor'],
)
def test_padding_of_a_moved_window_has_no_position(position):
    """Padded keys are the biases of their projection; places are those of the image."""
    attention, grid = ShiftedWindowAttention(8, 2, window_size=5, position=position), (3, 4)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens = torch.randn(2, 12, 8)
    bias = attention.split_heads(attention.qkv.bias.expand(2, 25 - 12, -1), 3)
    query, key, value = position(Layout(grid)).place(
        *attention.split_heads(attention.qkv(tokens), 3)
    )
    wider = key.shape[-1] - bias[1].shape[-1]
    key = torch.cat([key, torch.nn.functional.pad(bias[1], (0, wider))], dim=2)
    value = torch.cat([value, bias[2]], dim=2)
    read = (query @ key.mT * 4**-0.5).softmax(-1) @ value
    expected = attention.proj(read.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(tokens, grid), expected)


def test_rotary_coordinates_of_another_grid_are_rescaled_along_each_axis():
    position = RotaryPosition(16, 2, (4, 4), rescale=True, reference=(2, 8))
    cells = _coordinates((4, 4), (4, 4), position.rule, torch.device('cpu'))
    assert cells[-1].tolist() == [1.5, 6.0]


def test_gabor_keys_of_a_coarser_grid_lie_at_the_centres_of_their_cells():
    position = GaborAttention(8, 2, (6, 9), parts='2,3', query_key='G', value='G')
    fine, coarse = Layout((6, 9)), Layout((2, 3))
    for part in (1, 4):  # keys, values
        all_rows = position.prepare(fine, fine)[part].unflatten(2, (6, 9))
        expected = all_rows[:, :, 1::3, 1::3].flatten(2, 3)
        torch.testing.assert_close(position.prepare(fine, coarse)[part], expected)
