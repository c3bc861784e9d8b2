"""PVT and PVTv2: sizes, options, DTN and LaPE inside, errors."""

import pytest
import torch
from backbone_variants import PYRAMID_ARCH, build_pvt, count_parameters, randomise
from torch import nn

from mmlape.norm import DTN, LN


@pytest.mark.parametrize('size', [(448, 448), (224, 256), (33, 700), (1, 700), (225, 31)])
@pytest.mark.parametrize('options', [dict(), dict(with_cls_token=True), dict(version='V2')])
def test_any_image_size(options, size):
    """448 x 448 and other sizes at which the published code compares grids with stage 1's raise there."""
    for maps, stride in zip(
        build_pvt(**options).eval()(torch.randn(1, 3, *size)), (4, 8, 16, 32), strict=True
    ):
        assert maps.shape[-2:] == (-(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize('version', ['', 'V2'])
def test_every_pixel_is_covered(version):
    """Published code leaves the last rows and columns out where a stride does not divide the size."""
    model, image = randomise(build_pvt(version)), torch.randn(1, 3, 37, 45, requires_grad=True)
    for stage, maps in enumerate(model(image)):
        (grad,) = torch.autograd.grad(maps.square().sum(), image, retain_graph=True)
        assert grad.abs().sum(dim=1).ne(0).all(), stage


def test_names_are_the_published_ones():
    names = set(build_pvt(with_cls_token=True, joining=dict(type='mmlape.LaPE')).state_dict())
    assert {'cls_token', *(f'pos_embed{i}' for i in range(1, 5))} <= names
    assert {'patch_embed1.proj.weight', 'patch_embed4.norm.bias'} <= names
    assert {'block1.0.attn.q.weight', 'block2.1.attn.sr.weight', 'block1.0.attn.norm.bias'} <= names
    assert {'block4.0.attn.kv.bias', 'block4.0.mlp.fc2.weight'} <= names
    assert not any(name.startswith('block4.0.attn.sr') for name in names)
    names = set(build_pvt('V2').state_dict())
    assert {'block3.0.mlp.dwconv.dwconv.weight', 'norm1.weight', 'norm4.bias'} <= names
    assert not any('pos' in name or name == 'cls_token' for name in names)


def test_lape_adds_its_norms_and_no_stem():
    """Two vectors per layer and stage; a stage's position reaches all its layers."""
    default, lape = build_pvt(), build_pvt(joining=dict(type='mmlape.LaPE'))
    added = sum(2 * dims * depth for dims, depth in zip([8, 16, 20, 32], [1, 2, 1, 1], strict=True))
    assert count_parameters(lape) - count_parameters(default) == added
    plan = lape.position2((4, 4))
    assert plan.stem is None and len(plan.attention) == 2
    assert all(entry.shape == (1, 16, 16) for entry in plan.attention)


def test_position_per_stage():
    gabor, learned = dict(type='mmlape.GaborPosition'), dict(type='mmlape.LearnedPosition')
    joining = [dict(type='mmlape.LaPE')] * 2 + [dict(type='mmlape.DefaultJoining')] * 2
    model = build_pvt(position=[learned, gabor, None, learned], joining=joining)
    names = set(model.state_dict())
    assert 'pos_embed1' in names and 'position2.embedding.gabor_x.weight' in names
    assert not any(name.startswith(('pos_embed2', 'pos_embed3', 'position3')) for name in names)
    assert 'position1.joining.norms.0.weight' in names
    assert len(model(torch.randn(1, 3, 40, 56))) == 4


def test_tables_are_resized_bilinearly_as_published():
    model = build_pvt()
    table = model.position1.embedding.pos_embed.view(1, 16, 16, 8).permute(0, 3, 1, 2)
    expected = nn.functional.interpolate(table, size=(5, 9), mode='bilinear')
    assert torch.allclose(model.position1((5, 9)).stem, expected.flatten(2).transpose(1, 2))


def count_plans(model, monkeypatch):
    calls = []
    for stage in range(1, 5):
        embedding = getattr(model, f'position{stage}').embedding
        monkeypatch.setattr(
            embedding,
            'forward',
            lambda grid, f=embedding.forward, s=stage: calls.append(s) or f(grid),
        )
    return calls


def test_position_is_computed_once_per_pass(monkeypatch):
    model = build_pvt(joining=dict(type='mmlape.LaPE')).eval()
    calls, image = count_plans(model, monkeypatch), torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        model(image)
    assert calls == [1, 2, 3, 4]


def test_switch_to_deploy_changes_no_bit(monkeypatch):
    model = build_pvt(joining=dict(type='mmlape.LaPE')).eval()
    image = torch.randn(1, 3, 64, 96)
    before = model(image)
    calls = count_plans(model, monkeypatch)
    model.switch_to_deploy()
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(before, model(image), strict=True))
    assert calls == [1, 2, 3, 4] and not any(p.requires_grad for p in model.parameters())


def test_out_indices():
    image = torch.randn(1, 3, 64, 64)
    model = build_pvt('V2').eval()
    some = build_pvt('V2', out_indices=(0, -2)).eval()
    assert not any('4' in name.split('.')[0] for name in some.state_dict())
    some.load_state_dict({k: v for k, v in model.state_dict().items() if k in some.state_dict()})
    maps = model(image)
    assert all(torch.equal(a, b) for a, b in zip(some(image), (maps[0], maps[2]), strict=True))


def test_drop_path_grows_over_all_stages():
    model = build_pvt(drop_path_rate=0.4)
    rates = [
        getattr(block.drop_path, 'drop_prob', 0)
        for stage in range(1, 5)
        for block in getattr(model, f'block{stage}')
    ]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


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


def test_recomputation_saves_memory():
    def saved_bytes(**options):
        sizes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel() * t.element_size()) or t, lambda t: t
        )
        model = build_pvt(**options)
        with hooks:
            model(torch.randn(1, 3, 128, 128))
        return sum(sizes)

    assert saved_bytes(with_cp=True) < 0.6 * saved_bytes()


@pytest.mark.parametrize('options', [dict(), dict(version='V2'), dict(version='V2', linear=True)])
def test_blocks_are_one_graph(options):
    torch._dynamo.reset()
    model, grid = build_pvt(**options), (6, 10)
    for block, dims in [(model.block1[0], 8), (model.block4[0], 32)]:
        tokens = torch.randn(2, 60, dims)
        compiled = torch.compile(block, fullgraph=True, backend='eager')
        assert torch.allclose(compiled(tokens, grid), block(tokens, grid), atol=1e-5)


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


@pytest.mark.parametrize('size', [(1, 1), (33, 700), (100, 52)])
def test_dtn_at_any_size(size):
    model = build_pvt(norm_cfg=dict(type='mmlape.DTN'), joining=dict(type='mmlape.LaPE'))
    for maps, stride in zip(model(torch.randn(2, 3, *size)), (4, 8, 16, 32), strict=True):
        assert maps.shape[-2:] == (-(-size[0] // stride), -(-size[1] // stride))
        assert maps.isfinite().all()


def test_dtn_adds_five_values_per_head():
    """Three for the map (Table 7b: 2C + 3H with LayerNorm's own), one ratio each for mean and variance (B.4)."""
    heads, depths = [4, 4, 5, 8], PYRAMID_ARCH['depths']
    plain = build_pvt(num_heads=heads)
    dtn = build_pvt(num_heads=heads, norm_cfg=dict(type='mmlape.DTN'))
    norms = sum(2 * depth * count for depth, count in zip(depths[:3], heads[:3], strict=True))
    assert count_parameters(dtn) - count_parameters(plain) == 5 * norms


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        (dict(norm_cfg=dict(type='mmlape.DTN', num_heads=3)), 'num_heads must divide num_features'),
        (dict(arch='huge'), r"arch must be one of \['large'"),
        (dict(arch='b2'), r"arch must be one of \['large'"),
        (dict(version='V2', arch='tiny'), r"arch must be one of \['b0'"),
        (dict(arch=dict(PYRAMID_ARCH, heads=3)), r"unknown \['heads'\]"),
        (dict(arch=dict(PYRAMID_ARCH, depths=[1, 1, 1])), r"arch\['depths'\] must have one entry"),
        (dict(arch=dict(PYRAMID_ARCH, sr_ratios=[8, 4, 2, 0])), r"arch\['sr_ratios'\]"),
        (dict(num_heads=[1, 2, 5]), 'num_heads must have one entry for each of 4 stages'),
        (dict(num_heads=[3, 2, 5, 8]), 'num_heads must divide embed_dims, got num_heads=3'),
        (dict(out_indices=[0, 4]), 'out_indices must be -4 to 3, got 4'),
        (dict(out_indices=[3, -1]), 'different stages'),
        (dict(frozen_stages=5), 'frozen_stages must be -1 to 4'),
        (dict(drop_path_rate=1.0), 'drop_path_rate'),
        (dict(norm_cfg=dict(type='BN')), 'no token norm'),
        (dict(norm_cfg=[dict(type='mmlape.LN')] * 3), 'norm_cfg must have one entry'),
        (dict(position=[None] * 3), 'position must have one entry'),
        (dict(version='V2', joining=dict(type='mmlape.LaPE')), 'nothing to join'),
        (
            dict(with_cls_token=True, out_indices=[0, 1]),
            'are those of the last stage, which is not built',
        ),
        (
            dict(with_cls_token=True, arch=dict(PYRAMID_ARCH, sr_ratios=[8, 4, 2, 2])),
            'need attention without spatial reduction',
        ),
    ],
)
def test_bad_values(options, match):
    with pytest.raises(ValueError, match=match):
        build_pvt(**options)


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        (dict(arch=3), 'arch must be text, a dict or None, got 3'),
        (dict(num_heads=4), 'num_heads must be a list of 4 values'),
        (dict(arch=dict(PYRAMID_ARCH, mlp_ratios=['4', 4, 4, 4])), r"arch\['mlp_ratios'\]"),
        (dict(version='V2', linear=1), 'linear must be True or False'),
        (dict(with_cls_token=1), 'with_cls_token must be True or False'),
        (dict(norm_cfg='LN'), 'norm_cfg must be a dict, a list or None'),
        (dict(version='V2', with_cls_token=True), "unexpected keyword argument 'with_cls_token'"),
    ],
)
def test_wrong_types(options, match):
    with pytest.raises(TypeError, match=match):
        build_pvt(**options)


def test_wrong_images():
    for shape in [(3, 64, 64), (1, 4, 64, 64), (1, 3, 0, 64)]:
        with pytest.raises(ValueError, match='image must have the shape'):
            build_pvt()(torch.zeros(shape))


def test_user_configs_are_not_edited():
    norm, joining, arch = dict(type='mmlape.LN'), dict(type='mmlape.LaPE'), dict(PYRAMID_ARCH)
    build_pvt(norm_cfg=norm, joining=joining, arch=arch, num_heads=[4, 4, 5, 8])
    assert norm == dict(type='mmlape.LN') and joining == dict(type='mmlape.LaPE')
    assert arch == PYRAMID_ARCH


def test_float64_gradcheck():
    arch = dict(
        embed_dims=[2, 2, 2, 2],
        depths=[1] * 4,
        num_heads=[1] * 4,
        mlp_ratios=[1] * 4,
        sr_ratios=[2, 2, 1, 1],
    )
    model = build_pvt(arch=arch, joining=dict(type='mmlape.LaPE')).double()
    image = torch.randn(1, 3, 5, 18, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, (image,), fast_mode=True)
