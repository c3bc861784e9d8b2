"""Token norms built from a ``norm_cfg``."""

import pytest
import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from torch import nn

from mmlape.norm import LN, build_token_norm


def test_equals_layer_norm_and_ignores_the_grid():
    norm, x = LN(8), torch.randn(2, 6, 8)
    nn.init.normal_(norm.weight)
    expected = F.layer_norm(x, (8,), norm.weight, norm.bias, 1e-6)
    assert torch.equal(norm(x), expected)
    assert torch.equal(norm(x, (2, 3)), expected)


@pytest.mark.parametrize('name', ['mmlape.LN', 'LN', nn.LayerNorm, LN])
def test_layer_norm_under_every_name(name):
    norm = build_token_norm(dict(type=name, eps=1e-3), 8)
    assert type(norm) is LN and norm.eps == 1e-3


def test_default_eps_is_the_vits():
    assert build_token_norm(dict(type='LN'), 8).eps == 1e-6


def test_mmcv_builds_it():
    _name, norm = build_norm_layer(dict(type='mmlape.LN', eps=1e-6), 8)
    assert isinstance(norm, LN)


def test_frozen():
    norm = build_token_norm(dict(type='LN', requires_grad=False), 8)
    assert not any(p.requires_grad for p in norm.parameters())


@pytest.mark.parametrize('name', ['BN', 'mmlape.LM'])
def test_no_token_norm(name):
    with pytest.raises((ValueError, KeyError), match=name):
        build_token_norm(dict(type=name), 8)


@pytest.mark.parametrize('norm_cfg', ['LN', dict(eps=1e-6), None])
def test_no_config(norm_cfg):
    with pytest.raises(TypeError, match='norm_cfg'):
        build_token_norm(norm_cfg, 8)


def test_gradcheck():
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(LN(4).double(), (x,))
