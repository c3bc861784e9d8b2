"""The published DTN code's names, for a module alone and inside a network."""

import pytest
import torch

from mmlape.checkpoints import convert, convert_with_report
from mmlape.norm import DTN, PowerNorm, ScaleNorm, TokenBN


def test_bias_of_the_position_projection_is_the_only_thing_unused(golden):
    meta, state, _ = golden('dtn_0')
    norm = DTN(meta['num_features'], meta['group_num'])
    converted, report = convert_with_report(state, 'dtn', norm)
    norm.load_state_dict(converted, strict=True)
    assert report.unused == ['pos_proj.bias'] and report.matched_fraction == 1
    assert torch.equal(norm.positions.weight, state['pos_proj.weight'])
    assert torch.equal(norm.ratio_mean.omega, state['mean_norm_weight'])
    assert torch.equal(norm.ratio_var.omega, state['var_norm_weight'])


@pytest.mark.parametrize(
    ('name', 'cls'), [('scalenorm', ScaleNorm), ('batchnorm', TokenBN), ('powernorm', PowerNorm)]
)
def test_buffers_of_the_others(golden, name, cls):
    meta, state, _ = golden(f'norm_{name}')
    norm = cls(meta['num_features'])
    converted, report = convert_with_report(state, 'dtn', norm)
    norm.load_state_dict(converted, strict=True)
    assert not report.unused and not report.fresh


def test_heads_must_fit(golden):
    _, state, _ = golden('dtn_0')
    with pytest.raises(
        ValueError, match=r'has the shape \(4,\) in the source, \(6,\) in the model'
    ):
        convert(state, 'dtn', DTN(48, 6))
