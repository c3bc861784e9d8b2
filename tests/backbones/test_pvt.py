"""PVT and PVTv2: sizes, options, DTN and LaPE inside, errors."""

import pytest
import torch
from backbone_variants import build_pvt


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
    plain = build_pvt()
    assert plain.block1[0].norm1.eps == 1e-6 and plain.patch_embed1.norm.eps == 1e-5
    assert plain.block1[0].attn.norm.eps == 1e-5
