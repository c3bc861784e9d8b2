"""DTN's relative position on the scores: what eq. 6 says, prefix tokens, other grids, windows, initial values."""

import pytest
import torch
from registered import component, vit

from mmlape.layers import Attention
from mmlape.layout import Layout
from mmlape.norm.dtn_maps import LearnedMap
from mmlape.position import QuadraticBias
from mmlape.position.gabor_attention import local_rows


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


def test_its_softmax_is_the_map_of_dtn():
    position, maps = randomised(), LearnedMap(2)
    maps.load_state_dict(position.scores.state_dict())
    rows, columns = maps((3, 4), torch.device('cpu'), torch.float32)
    dense = torch.einsum('gyv,gxu->gyxvu', rows, columns).flatten(3).flatten(1, 2)
    bias = position.bias(Layout((3, 4)), Layout((3, 4)))[0]
    torch.testing.assert_close(bias.softmax(dim=-1), dense)


def test_prefix_tokens_get_nothing():
    position = randomised(num_prefix_tokens=2)
    layout = Layout((3, 4), num_prefix=2)
    bias = position.bias(layout, layout)[0]
    assert not bias[:, :2].any() and not bias[:, :, :2].any()
    expected = written_out(position.scores.weight, (3, 4))
    torch.testing.assert_close(bias[:, 2:, 2:], expected)


def test_keys_on_a_coarser_grid_are_the_unit():
    """4 queries and 2 keys on an axis: a key is 1 wide, a query 0.5."""
    position = randomised(heads=1)
    a_x, _, a_2 = position.scores.weight[0]
    bias = position.bias(Layout((1, 4)), Layout((1, 2)))[0, 0]
    for query, place in enumerate((-0.25, 0.25, 0.75, 1.25)):
        for key in (0, 1):
            offset = place - key
            torch.testing.assert_close(bias[query, key], a_x * offset + a_2 * offset**2)


def test_an_attention_layer_adds_it():
    position = randomised()
    attention = Attention(8, 2, position=position)
    tokens = torch.randn(2, 12, 8)
    query, key, value = attention.qkv(tokens).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    scores = query @ key.mT / 2 + written_out(position.scores.weight, (3, 4))
    expected = attention.proj((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(tokens, (3, 4)), expected)


def test_half_precision_knows_its_offsets():
    position = randomised()
    layout = Layout((60, 2))
    expected = position.bias(layout, layout)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert torch.equal(position.bias(layout, layout), expected)
    assert position.bfloat16().bias(layout, layout).dtype == torch.float32


def test_initial_values():
    torch.manual_seed(0)
    weight = QuadraticBias(2000, 1000, (3, 4)).scores.weight
    assert abs(weight.std() - 0.02) < 1e-3 and abs(weight.mean()) < 1e-3
    weight = QuadraticBias(36, 9, (3, 4), position_init='local').scores.weight
    assert torch.equal(weight, local_rows(9))


def test_in_windows_and_in_some_layers():
    build = vit(
        attention_position=component('QuadraticBias', layers=[1]), window_size=[None, (2, 3)]
    )
    model = build(with_cls_token=True)
    names = [name for name, _ in model.named_parameters() if 'scores' in name]
    assert names == ['blocks.1.attn.position.scores.weight']
    model(torch.randn(2, 3, 40, 56))[0].square().mean().backward()
    assert model.get_parameter(names[0]).grad.abs().sum() > 0
