"""Token norms built from a ``norm_cfg``."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlape.layout import Layout
from mmlape.norm import LN, TokenIN, TokenNorm, build_token_norm, norm_class


def test_equals_layer_norm_and_ignores_the_grid():
    norm, x = LN(8), torch.randn(2, 6, 8)
    nn.init.normal_(norm.weight)
    expected = F.layer_norm(x, (8,), norm.weight, norm.bias, 1e-6)
    assert torch.equal(norm(x), expected)
    assert torch.equal(norm(x, (2, 3)), expected)
    assert torch.equal(norm(x, Layout((1, 4), 2)), expected)


@pytest.mark.parametrize(
    ('name', 'cls'),
    [
        ('mmlape.LN', LN),
        ('LN', LN),
        (nn.LayerNorm, LN),
        ('mmlape.TokenIN', TokenIN),
        (TokenIN, TokenIN),
    ],
)
def test_norms_of_a_config(name, cls):
    config = dict(type=name, eps=1e-3, requires_grad=False)
    norm = build_token_norm(config, 8)
    assert type(norm) is norm_class(config) is cls and norm.eps == 1e-3
    assert not any(p.requires_grad for p in norm.parameters())


@pytest.mark.parametrize('name', ['BN', nn.BatchNorm1d, 'mmlape.VisionTransformer', 'mmlape.LM'])
def test_no_token_norm(name):
    words = (
        'LM' if name == 'mmlape.LM' else r'not a token norm \(a subclass of mmlape\.norm\.TokenNorm'
    )
    with pytest.raises((ValueError, KeyError), match=words):
        build_token_norm(dict(type=name), 8)


@pytest.mark.parametrize('norm_cfg', ['LN', dict(eps=1e-6), None])
def test_no_config(norm_cfg):
    with pytest.raises(TypeError, match='norm_cfg'):
        build_token_norm(norm_cfg, 8)


def test_a_norm_of_your_own_that_needs_places():
    """docs/extending.md has one that does not."""

    class RowNorm(TokenNorm):
        def forward(self, tokens, grid=None):
            height, width = grid
            rows = tokens.unflatten(1, (height, width))
            return (rows - rows.mean(dim=2, keepdim=True)).flatten(1, 2) * self.weight

    x, norm = torch.randn(2, 6, 8), build_token_norm(dict(type=RowNorm, eps=1e-6), 8)
    assert torch.equal(norm(x, Layout((2, 3))), norm(x, (2, 3)))
    assert not (
        norm.mixes_tokens or norm.depends_on_position or norm.keeps_statistics or norm.by_head
    )
