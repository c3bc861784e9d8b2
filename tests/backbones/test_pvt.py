"""PVT and PVTv2: sizes, options, DTN and LaPE inside, errors."""

import pytest
import torch
from backbone_variants import PYRAMID_ARCH, build_pvt, count_parameters, randomise
from torch import nn

from mmlape.norm import DTN, LN


@pytest.mark.parametrize('version', ['', 'V2'])
def test_every_pixel_is_covered(version):
    """Published code leaves the last rows and columns out where a stride does not divide the size."""
    model, image = randomise(build_pvt(version)), torch.randn(1, 3, 37, 45, requires_grad=True)
    for stage, maps in enumerate(model(image)):
        (grad,) = torch.autograd.grad(maps.square().sum(), image, retain_graph=True)
        assert grad.abs().sum(dim=1).ne(0).all(), stage


def test_position_per_stage():
    gabor, learned = dict(type='mmlape.GaborPosition'), dict(type='mmlape.LearnedPosition')
    joining = [dict(type='mmlape.LaPE')] * 2 + [dict(type='mmlape.DefaultJoining')] * 2
    model = build_pvt(position=[learned, gabor, None, learned], joining=joining)
    names = set(model.state_dict())
    assert 'pos_embed1' in names and 'position2.embedding.gabor_x.weight' in names
    assert not any(name.startswith(('pos_embed2', 'pos_embed3', 'position3')) for name in names)
    assert 'position1.joining.norms.0.weight' in names
    assert len(model(torch.randn(1, 3, 40, 56))) == 4


@pytest.mark.parametrize('frozen_stages', [-1, 0, 1, 3, 4])
def test_frozen_stages(frozen_stages):
    model = build_pvt(
        frozen_stages=frozen_stages,
        joining=dict(type='mmlape.LaPE'),
        drop_path_rate=0.5,
        with_cls_token=True,
    ).train()
    for stage in range(1, 5):
        frozen = stage <= frozen_stages
        block = getattr(model, f'block{stage}')[0]
        assert block.training != frozen and block.attn.q.weight.requires_grad != frozen
        position = getattr(model, f'position{stage}')
        assert position.joining.norms[0].weight.requires_grad != frozen
        stem = frozen or (stage == 1 and frozen_stages == 0)
        assert position.embedding.pos_embed.requires_grad != stem
        assert getattr(model, f'patch_embed{stage}').proj.weight.requires_grad != stem
    assert model.cls_token.requires_grad == (frozen_stages < 4)


def test_norm_per_stage():
    eps = [1e-3, 1e-4, 1e-5, 1e-6]
    model = build_pvt('V2', norm_cfg=[dict(type='mmlape.LN', eps=value) for value in eps])
    assert [getattr(model, f'block{i}')[0].norm2.eps for i in range(1, 5)] == eps
    assert model.norm1.eps == 1e-6 and model.patch_embed1.norm.eps == 1e-5
    assert build_pvt().block1[0].norm1.eps == 1e-6


def block_norms(model):
    return [getattr(model, f'block{stage}')[0].norm1 for stage in range(1, 5)]


@pytest.mark.parametrize('version', ['', 'V2'])
def test_dtn_goes_where_it_is_published(version):
    """One line: stages 1 to 3, 4, 4 and 5 heads, pooling sizes 4, 2 and 1; stage 4 has LayerNorm."""
    model = build_pvt(version, norm_cfg=dict(type='mmlape.DTN'))
    *dtns, last = block_norms(model)
    assert all(isinstance(norm, DTN) for norm in dtns) and isinstance(last, LN)
    assert [norm.num_heads for norm in dtns] == [4, 4, 5]
    assert [norm.pool for norm in dtns] == [4, 2, 1] and last.eps == 1e-6
    assert isinstance(model.block2[1].norm2, DTN)
    others = [model.patch_embed1.norm, model.block1[0].attn.norm]
    assert all(isinstance(norm, nn.LayerNorm) and norm.eps == 1e-5 for norm in others)


def test_dtn_options_win_over_the_published_ones():
    model = build_pvt(norm_cfg=dict(type='mmlape.DTN', num_heads=2, pool=1, eps=1e-6))
    assert [(n.num_heads, n.pool, n.eps) for n in block_norms(model)[:3]] == [(2, 1, 1e-6)] * 3
    everywhere = build_pvt(norm_cfg=[dict(type=DTN)] * 4, num_heads=[4, 4, 5, 8])
    assert [(n.num_heads, n.pool) for n in block_norms(everywhere)] == [
        (4, 1),
        (4, 1),
        (5, 1),
        (8, 1),
    ]


def test_dtn_adds_five_values_per_head():
    """Three for the map (Table 7b: 2C + 3H with LayerNorm's own), one ratio each for mean and variance (B.4)."""
    heads, depths = [4, 4, 5, 8], PYRAMID_ARCH['depths']
    plain = build_pvt(num_heads=heads)
    dtn = build_pvt(num_heads=heads, norm_cfg=dict(type='mmlape.DTN'))
    norms = sum(2 * depth * count for depth, count in zip(depths[:3], heads[:3], strict=True))
    assert count_parameters(dtn) - count_parameters(plain) == 5 * norms
