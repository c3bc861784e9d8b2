"""Weights of a whole network in one whose last layers are not built, and tables of another grid."""

import re

import pytest
import torch
from backbone_variants import build_pvt, build_vit
from torch import nn

from mmlape.checkpoints import convert, convert_with_report
from mmlape.norm import LN, TokenIN
from mmlape.position import LearnedPosition, RelativePositionBias, resize_table

IMAGE = torch.randn(1, 3, 64, 48, generator=torch.Generator().manual_seed(0))
LAPE = dict(type='mmlape.LaPE')
PER_LAYER = {
    'joining': LAPE,
    'attention_position': dict(type='mmlape.RelativePositionBias'),
    'norm_cfg': dict(type='mmlape.TokenIN'),
}


def whole_and_truncated(**options):
    """A ViT of four layers, random, that also returns what its second gives; and one of two layers."""
    whole = build_vit(out_indices=[1, 3], **options).eval()
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.2)
    return whole, build_vit(out_indices=1, **options).eval()


def published(state):
    """Names of the published LaPE code."""
    state = {
        re.sub(r'^position\.joining\.norms\.(\d+)', r'blocks.\1.pe_norm', k): v
        for k, v in state.items()
    }
    tables = state.pop('pos_embed')
    names = ['pos_embed'] if len(tables) == 1 else [f'pos_embed{i}' for i in range(len(tables))]
    return {**state, **dict(zip(names, tables.split(1), strict=True))}


@pytest.mark.parametrize(
    'joining',
    [
        LAPE,
        dict(type='mmlape.UnsharedJoining'),
        dict(type='mmlape.LaPEWarmStart', construction='gate'),
        dict(LAPE, layers=3),
        dict(LAPE, layers=[1, 3]),
        dict(LAPE, progressive=False, norm='scalar_gain'),
    ],
    ids=str,
)
@pytest.mark.parametrize('source', ['mmlape', 'lape'])
def test_layers_that_are_not_built_are_left_out(joining, source):
    whole, truncated = whole_and_truncated(joining=joining)
    state = whole.state_dict()
    if source == 'lape':
        state = published(state)
    if source == 'lape' and 'LaPEWarmStart' in joining['type']:
        state |= {k: v for k, v in whole.state_dict().items() if 'gates' in k}
    converted, report = convert_with_report(state, source, truncated)
    report.demand(1)
    truncated.load_state_dict(converted, strict=True)
    with torch.no_grad():
        assert torch.equal(truncated(IMAGE)[0], whole(IMAGE)[0])
    assert all(re.match(r'blocks\.[23]|norm\.|position\.joining', name) for name in report.left_out)


@pytest.mark.parametrize('option', PER_LAYER)
@pytest.mark.parametrize('layers', [3, [0, 1, 2], [1, 3]], ids=str)
def test_layers_of_the_architecture_may_be_named(option, layers):
    """Of those that are named, the ones that are built have it."""
    model = build_vit(out_indices=1, **{option: dict(PER_LAYER[option], layers=layers)})
    named = range(layers) if isinstance(layers, int) else layers
    found = {
        'joining': lambda layer: bool(model.position.joining.layer_modules(layer)),
        'attention_position': lambda layer: isinstance(
            model.blocks[layer].attn.position, RelativePositionBias
        ),
        'norm_cfg': lambda layer: type(model.blocks[layer].norm1) is TokenIN,
    }[option]
    assert [found(layer) for layer in (0, 1)] == [layer in named for layer in (0, 1)]
    assert model(IMAGE)[0].isfinite().all()


@pytest.mark.parametrize('option', PER_LAYER)
@pytest.mark.parametrize('layers', [[2], [2, 3]], ids=str)
def test_layers_of_which_none_is_built_are_refused(option, layers):
    with pytest.raises(ValueError, match=rf'{option} names the layers \[2.*none is built'):
        build_vit(out_indices=1, **{option: dict(PER_LAYER[option], layers=layers)})


def test_norms_counted_from_the_end_may_end_before_the_last_output():
    model = build_vit(out_indices=2, norm_cfg=dict(PER_LAYER['norm_cfg'], layers=-2))
    assert [type(block.norm1) for block in model.blocks] == [TokenIN, TokenIN, LN]


def tables_of(model):
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, LearnedPosition)
    }


@pytest.mark.parametrize('source', ['mmlape', 'pvt'])
@pytest.mark.parametrize('mode', ['bilinear', 'bicubic'])
def test_tables_of_a_pyramid_are_resized_as_it_resizes_them(source, mode):
    """On load as in a pass; prefix rows stay as they are."""
    options = dict(with_cls_token=True, position=dict(type='mmlape.LearnedPosition', resize=mode))
    if mode == 'bilinear':  # the default
        del options['position']
    theirs, model = build_pvt(**options), build_pvt(img_size=(96, 128), **options)
    model.load_state_dict(convert(theirs.state_dict(), source, model), strict=True)
    tables = tables_of(model)
    assert len(tables) == 4
    for name, table in tables.items():
        given = theirs.get_submodule(name)
        prefix, cells = given.pos_embed.tensor_split([given.num_prefix_tokens], dim=1)
        expected = torch.cat([prefix, resize_table(cells, given.grid, table.grid, mode=mode)], 1)
        assert torch.equal(table.pos_embed, expected)
        assert torch.equal(given(table.grid), expected)
