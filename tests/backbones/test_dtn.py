"""Where DTN goes in every network, and prefix tokens that enter after the first layers."""

import re
from functools import partial

import pytest
import torch
from backbone_variants import (
    ARCH,
    DTN,
    JOININGS,
    build_compact,
    build_levit,
    build_pvt,
    build_vit,
    component,
    randomise,
)
from config_utils import REPO

from mmlape import norm as norms
from mmlape.registry import MODELS


def norms_of(model):
    """Of every layer, stage by stage: the kind of both norms, and the heads and the pooling of DTN."""
    found = []
    for stage in model.stages():
        rows = []
        for block in stage.blocks:
            kinds = {type(norm).__name__ for norm in (block.norm1, block.norm2)}
            norm = block.norm1
            rows.append((*kinds, getattr(norm, 'num_heads', None), getattr(norm, 'pool', None)))
        found.append(rows)
    return found


LN = ('LN', None, None)


@pytest.mark.parametrize(
    ('kind', 'arch', 'expected', 'prefix_after', 'output'),
    [
        # DTN (ICLR 2022), appendices A.1 and B: the class token sees two layers with LayerNorm
        ('VisionTransformer', 'vit-tiny-star', [[('DTN', 4, 1)] * 10 + [LN] * 2], 10, 'LN'),
        ('T2TViT', 't2t-vit-t-14', [[('DTN', 6, 1)] * 12 + [LN] * 2], 12, 'LN'),
        ('CompactTransformer', 'vit-lite-7-4', [[('DTN', 4, 1)] * 5 + [LN] * 2], 5, 'LN'),
        ('CompactTransformer', 'cvt-7-4', [[('DTN', 4, 1)] * 7], 0, 'LN'),
        (
            'PyramidVisionTransformer', 'tiny',
            [[('DTN', 4, 4)] * 2, [('DTN', 4, 2)] * 2, [('DTN', 5, 1)] * 2, [LN] * 2], 0, None,
        ),
        (
            'PyramidVisionTransformerV2', 'b0',
            [[('DTN', 4, 4)] * 2, [('DTN', 4, 2)] * 2, [('DTN', 5, 1)] * 2, [LN] * 2], 0, None,
        ),
        (
            'SwinTransformer', 'tiny',
            [[('DTN', 3, 4)] * 2, [('DTN', 6, 2)] * 2, [('DTN', 12, 1)] * 6, [('DTN', 24, 1)] * 2], 0, None,
        ),
        ('LeViT', 'levit-128s', [[('DTN', 4, 1)] * 2, [('DTN', 8, 1)] * 3, [('DTN', 12, 1)] * 4], 0, None),
    ],
)  # fmt: skip
def test_one_dtn_goes_where_it_is_published(kind, arch, expected, prefix_after, output):
    with torch.device('meta'):
        model = MODELS.build(dict(type=f'mmlape.{kind}', arch=arch, norm_cfg=DTN))
    assert norms_of(model) == expected and model.prefix_after == prefix_after
    assert output == (model.norm and type(model.norm).__name__)


def test_dtn_options_win_over_the_published_ones():
    model = build_pvt(norm_cfg=dict(DTN, num_heads=2, pool=1, eps=1e-6))
    assert norms_of(model)[0] == [('DTN', 2, 1)] and model.block1[0].norm1.eps == 1e-6
    everywhere = build_pvt(norm_cfg=[dict(type=norms.DTN)] * 4, num_heads=[4, 4, 5, 8])
    assert [rows[0] for rows in norms_of(everywhere)] == [('DTN', n, 1) for n in (4, 4, 5, 8)]
    some = build_levit(norm_cfg=dict(DTN, num_heads=4, layers=1))
    assert [[row[0] for row in rows] for rows in norms_of(some)] == [
        ['DTN'], ['DTN', 'TokenBN'], ['DTN']
    ]  # fmt: skip


def test_the_released_network():
    """That of docs/dtn.md: no bias, eps 1e-5, no row of the class token, random maps."""
    page = (REPO / 'docs' / 'dtn.md').read_text()
    (code,) = (
        part for part in re.findall(r'```python\n(.*?)```', page, re.S) if 'qkv_bias' in part
    )
    config = {}
    exec(code, config)
    with torch.device('meta'):
        model = MODELS.build(config['backbone'])
    assert model.position.embedding.pos_embed.shape == (1, 196, 432) and model.prefix_after == 10
    assert not any('qkv.bias' in name for name, _ in model.named_parameters())
    found = [norm for block in model.blocks for norm in (block.norm1, block.norm2)] + [model.norm]
    assert all(isinstance(norm, norms.DTN) for norm in found[:20])
    assert {norm.positions.init for norm in found[:20]} == {'random'}
    assert all(isinstance(norm, norms.LN) for norm in found[20:])
    assert {norm.eps for norm in found} == {1e-5}


def test_the_first_of_two_layers_has_it():
    sizes = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2)
    model = build_vit(arch=sizes, norm_cfg=dict(type='mmlape.DTN'))
    assert [isinstance(block.norm1, norms.DTN) for block in model.blocks] == [True, False]


def test_the_norm_of_the_output_in_a_list():
    """One entry more than layers; where one norm for all does not reach the output, too."""
    last = dict(type='mmlape.ScaleNorm')
    for build, depth in ((build_vit, 4), (partial(build_compact, arch=ARCH), 4)):
        model = build(norm_cfg=[None] * depth + [last])
        assert isinstance(model.norm, norms.ScaleNorm)
        assert isinstance(model.blocks[-1].norm1, norms.LN)
        with pytest.raises(ValueError, match='norm_cfg must have one entry for each of 4 layers'):
            build(norm_cfg=[None] * (depth + 2))


@pytest.mark.parametrize(
    ('options', 'layers', 'prefix_after'),
    [
        (dict(norm_cfg=DTN), [0, 1], 2),
        (dict(norm_cfg=dict(DTN, layers=1)), [0], 1),
        (dict(norm_cfg=dict(DTN, layers=[0, 2])), [0, 2], 3),
        (dict(norm_cfg=dict(DTN, layers=3), prefix_after=1), [0, 1, 2], 1),
        (dict(norm_cfg=dict(DTN, layers=None)), [0, 1, 2, 3, 'norm'], 0),
        (dict(norm_cfg=dict(DTN, num_heads=6, pool=2), with_cls_token=False), [0, 1], 0),
        (dict(prefix_after=3), [], 3),
        (dict(), [], 0),
    ],
)
def test_where_dtn_goes_and_the_class_token_joins(options, layers, prefix_after):
    model = build_vit(**options)
    found = [layer for layer, b in enumerate(model.blocks) if isinstance(b.norm1, norms.DTN)]
    found += ['norm'] * isinstance(model.norm, norms.DTN)
    assert found == layers and model.prefix_after == prefix_after
    (maps,) = model(torch.randn(1, 3, 40, 70))
    assert maps.shape == (1, 24, 3, 5)


def by_hand(model, image):
    """Tokens of the last layer: the class token takes its rows of the plan, the layers before it do without them."""
    tokens, layout = model.patch_embed(image)
    grid = layout.grid
    plan = model.position(grid)
    stem = torch.zeros(1, 1, model.embed_dims) if plan.stem is None else plan.stem
    tokens = tokens + stem[:, -tokens.shape[1] :]
    for layer, block in enumerate(model.blocks):
        if layer == model.prefix_after:
            tokens = torch.cat([model.cls_token + stem[:, :1], tokens], dim=1)
        count = tokens.shape[1]
        stream, attention = plan.stream[layer], plan.attention[layer]
        tokens = tokens if stream is None else tokens + stream[:, -count:]
        tokens = block(tokens, grid, None if attention is None else attention[:, -count:])
    return model.norm(tokens, grid)


@pytest.mark.parametrize(
    ('joining', 'position'),
    [*((name, 'LearnedPosition') for name in JOININGS), ('unshared', 'GaborPosition'), ('lape', 'SinusoidalPosition')],
)  # fmt: skip
def test_position_of_a_class_token_that_joins_later(joining, position):
    options = dict(joining=JOININGS[joining], position=component(position), out_type='raw')
    model = randomise(build_vit(norm_cfg=DTN, **options))
    assert model.prefix_after == 2
    image = torch.randn(1, 3, 40, 70)
    (tokens,) = model(image)
    assert tokens.shape == (1, 1 + 15, 24)
    torch.testing.assert_close(tokens, by_hand(model, image))


def test_prefix_tokens_that_no_built_layer_sees_are_not_built():
    """They would get no gradient, which DistributedDataParallel refuses."""
    model = build_vit(norm_cfg=DTN, out_indices=1, out_type='featmap_and_prefix')
    assert model.num_prefix_tokens == 0 and 'cls_token' not in model.state_dict()
    ((_, prefix),) = model(torch.randn(1, 3, 64, 64))
    assert prefix.shape == (1, 0, 24)


@pytest.mark.parametrize(('frozen_stages', 'trained'), [(-1, True), (1, True), (2, False)])
def test_class_token_is_frozen_where_it_joins(frozen_stages, trained):
    model = build_vit(norm_cfg=DTN, frozen_stages=frozen_stages)
    assert model.cls_token.requires_grad == trained
    model(torch.randn(1, 3, 64, 64))[0].sum().backward()
    assert (model.cls_token.grad is not None) == trained


@pytest.mark.parametrize('joining', ['default', 'lape'])
def test_dropout_reaches_tokens_that_join_later(joining):
    """With a stem's position or without one, as those that are there from the start."""
    model, shapes = build_vit(prefix_after=2, joining=JOININGS[joining]), []
    model.drop_after_position.register_forward_hook(lambda *call: shapes.append(call[2].shape))
    model(torch.randn(2, 3, 64, 64))
    assert shapes == [(2, 16, 24), (2, 1, 24)]
