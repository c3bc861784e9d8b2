"""DTN against what the published module computes, and against the published maths written out."""

import sys
from pathlib import Path

import pytest
import torch

from mmlape.checkpoints import convert
from mmlape.norm import DTN
from mmlape.position.gabor_attention import local_rows

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.reference.dtn import DenseDTN

OURS = {
    'input': 'input',
    'weight': 'weight',
    'bias': 'bias',
    'mean_norm_weight': 'ratio_mean.omega',
    'var_norm_weight': 'ratio_var.omega',
    'pos_proj.weight': 'positions.weight',
}


@pytest.mark.usefixtures('either_way')
@pytest.mark.parametrize('number', range(6))
def test_published_outputs_and_gradients(golden, number):
    meta, state, arrays = golden(f'dtn_{number}')
    norm = DTN(
        meta['num_features'],
        meta['group_num'],
        pool=meta['pool'],
        variance_only=meta.get('only_var', False),
        eps=meta['eps'],
    )
    norm.load_state_dict(convert(state, 'dtn', norm, min_matched=1), strict=True)
    tokens = arrays['input'].requires_grad_()
    out = norm(tokens, tuple(meta['resolution']))
    torch.testing.assert_close(out, arrays['output'], atol=1e-5, rtol=0)

    (out * arrays['cotangent']).sum().backward()
    gradients = {'input': tokens.grad, **{name: p.grad for name, p in norm.named_parameters()}}
    published = {name[5:]: grad for name, grad in arrays.items() if name.startswith('grad/')}
    # it cancels in the softmax: rounding noise in the published code, absent here
    noise = published.pop('pos_proj.bias').abs().max()
    assert noise < 1e-4 * published['pos_proj.weight'].abs().max()
    assert {OURS[name] for name in published} == set(gradients)
    for name, expected in published.items():
        error = (gradients[OURS[name]] - expected).abs().max() / expected.abs().max()
        assert error < 1e-4, name


@pytest.mark.parametrize('number', range(6))
def test_reference_of_the_benchmarks_is_the_published_maths(golden, number):
    meta, state, arrays = golden(f'dtn_{number}')
    norm = DenseDTN(
        meta['num_features'],
        meta['group_num'],
        meta['resolution'][0],
        meta['pool'],
        meta.get('only_var', False),
    )
    norm.load_state_dict(state, strict=True)
    torch.testing.assert_close(norm(arrays['input']), arrays['output'], atol=1e-5, rtol=0)


@pytest.mark.parametrize(('heads', 'largest'), [(4, 4), (9, 1), (16, 4)])
def test_where_heads_look_at_first(heads, largest):
    """Between cells for an even side (docs/dtn.md, of the paper's Fig. 6): then four cells of a square tie."""
    rows, columns = DTN(heads, heads).axis_maps((14, 14))
    maps = torch.einsum('gh,gw->ghw', rows[:, 6], columns[:, 6]).detach()
    tops = maps.flatten(1).amax(dim=1)[:, None, None]
    found = [torch.nonzero(cells) for cells in maps > 0.999 * tops]
    assert {len(cells) for cells in found} == {largest}
    centres = {tuple(cells.float().mean(dim=0).tolist()) for cells in found}
    assert len(centres) == heads  # each head its own
    if heads == 4:
        assert all([6, 6] in cells.tolist() for cells in found)


@pytest.mark.parametrize('heads', [4, 6, 9, 16])
def test_published_local_initialisation(golden, heads):
    rows = golden(f'dtn_init_heads{heads}').arrays['weight']
    assert torch.equal(local_rows(heads), rows)
    weight = DTN(heads * 2, heads).positions.weight
    assert torch.equal(weight[: len(rows)], rows)
    assert weight[len(rows) :].abs().max().item() < 0.2 if heads == 6 else len(rows) == heads
