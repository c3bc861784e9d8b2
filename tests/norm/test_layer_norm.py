"""Token norms built from a ``norm_cfg``."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlape.layout import Layout
from mmlape.norm import DTN, LN, TokenNorm, build_token_norm, norm_class
from mmlape.registry import MODELS


def test_equals_layer_norm_and_ignores_the_grid():
    norm, x = LN(8), torch.randn(2, 6, 8)
    nn.init.normal_(norm.weight)
    expected = F.layer_norm(x, (8,), norm.weight, norm.bias, 1e-6)
    assert torch.equal(norm(x), expected)
    assert torch.equal(norm(x, (2, 3)), expected)
    assert torch.equal(norm(x, Layout((1, 4), 2)), expected)


@pytest.mark.parametrize('name', ['mmlape.LN', 'LN', nn.LayerNorm, LN])
def test_layer_norm_under_every_name(name):
    norm = build_token_norm(dict(type=name, eps=1e-3), 8)
    assert type(norm) is LN and norm.eps == 1e-3


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


@pytest.mark.parametrize(
    ('name', 'cls'),
    [('mmlape.LN', LN), ('LN', LN), (nn.LayerNorm, LN), ('mmlape.DTN', DTN), (DTN, DTN)],
)
def test_class_of_a_config(name, cls):
    assert norm_class(dict(type=name)) is cls


@pytest.mark.parametrize('name', ['BN', nn.BatchNorm1d, 'mmlape.VisionTransformer'])
def test_class_of_no_token_norm(name):
    with pytest.raises(ValueError, match=r'no token norm: no subclass of mmlape\.norm\.TokenNorm'):
        norm_class(dict(type=name))


@pytest.fixture
def own(monkeypatch):
    """Norms of a user's own: one line, and one that needs places."""
    monkeypatch.setattr(MODELS, '_module_dict', dict(MODELS.module_dict))

    @MODELS.register_module()
    class HalfNorm(TokenNorm):
        def standardise(self, x):
            return x / 2

    @MODELS.register_module()
    class RowNorm(TokenNorm):
        def forward(self, tokens, grid=None):
            height, width = grid
            rows = tokens.unflatten(1, (height, width))
            return (rows - rows.mean(dim=2, keepdim=True)).flatten(1, 2) * self.weight


@pytest.mark.usefixtures('own')
def test_norms_of_your_own():
    x = torch.randn(2, 6, 8)
    half = build_token_norm(dict(type='mmlape.HalfNorm'), 8)
    assert torch.equal(half(x, Layout((2, 3))), x / 2) and torch.equal(half(x), x / 2)
    row = build_token_norm(dict(type='mmlape.RowNorm', eps=1e-6), 8)
    assert torch.equal(row(x, Layout((2, 3))), row(x, (2, 3)))
    assert not (half.mixes_tokens or half.sees_places or half.keeps_statistics or half.by_head)


def test_a_norm_without_anything_of_its_own():
    class Empty(TokenNorm):
        pass

    with pytest.raises(NotImplementedError, match='Empty must have standardise'):
        Empty(8)(torch.randn(2, 6, 8))
