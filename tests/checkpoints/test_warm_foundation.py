"""LaPE, DTN and Gabor position on every kind of plain ViT, from weights that were trained without them."""

import copy

import pytest
import timm
import torch
from foundation_kinds import KINDS, TABLES, assert_same_tokens, build, load, patch_of, source

from mmlape.backbones import timm_archs

every_kind = pytest.mark.parametrize('kind', KINDS)
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def joined(kind, joining, std=0, **options):
    """With a joining method over the kind's own table, or over one of this ``std`` where it has none."""
    table = dict(type='mmlape.LearnedPosition', std=std)
    options |= {} if kind in TABLES else dict(position=table)
    return build(kind, joining=dict(type=f'mmlape.{joining[0]}', **joining[1]), **options)


def image(kind, rows=3, columns=5):
    patch = patch_of(kind)
    return torch.randn(2, 3, rows * patch - 3, columns * patch - 1)


@pytest.mark.parametrize(
    ('kind', 'construction'),
    [*((kind, 'affine') for kind in KINDS), ('table', 'gate'), ('rotary', 'gate')],
)
def test_a_warm_start_is_the_source_to_the_bit_and_learns(kind, construction):
    model = joined(kind, ('LaPEWarmStart', dict(construction=construction)))
    plain = build(kind)
    load(kind, plain).demand(1)
    report = load(kind, model)
    assert report.fresh and all(
        name.startswith(('position.', 'pos_embed')) for name in report.fresh
    )
    pixels = image(kind)
    with torch.no_grad():
        assert torch.equal(model.eval()(pixels)[0], plain.eval()(pixels)[0])
    model.train()(pixels)[0].square().mean().backward()
    for layer in range(4):
        branch = [
            p for part in model.position.joining.layer_modules(layer) for p in part.parameters()
        ]
        assert any(p.grad.abs().max() > 0 for p in branch) == (
            kind in TABLES or construction == 'affine'
        )
    assert model.position.embedding.pos_embed.grad.abs().max() > 0


def step(model, pixels):
    """A step of training: every parameter has a gradient, and the loss falls."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.randn(model.eval()(pixels)[0].shape)
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        loss = (model.train()(pixels)[0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@every_kind
@pytest.mark.parametrize('added', ['lape and dtn', 'gabor'])
def test_a_part_on_top_loads_and_trains(kind, added):
    if added == 'gabor':
        model = build(kind, position=dict(type='mmlape.GaborPosition'))
    else:
        dtn = dict(type='mmlape.DTN', layers=1)
        model = joined(kind, ('LaPE', {}), std=0.02, norm_cfg=dtn)
    report = load(kind, model)
    lost = ('pos_embed', 'fc_norm', 'head', 'pool')
    assert all(name.startswith(lost) for name in report.left_out)
    blocks = [name for name in report.fresh if name.startswith('blocks.')]
    assert all('.norm' in name for name in blocks) and bool(blocks) == ('dtn' in added)
    assert not any(name.endswith(('qkv.weight', 'fc1.weight')) for name in report.fresh)
    step(model, image(kind))


def test_a_network_without_a_table_needs_one_to_join():
    with pytest.raises(ValueError, match=r'has nothing to join.*give a position too'):
        build('rotary', joining=dict(type='mmlape.LaPEWarmStart'))


@every_kind
def test_outputs_are_timms(kind):
    """At its own size and at another, for which tables are resized."""
    theirs, model, side = copy.deepcopy(source(kind)[0]), build(kind).eval(), patch_of(kind)
    load(kind, model).demand(1)
    for size in ((4 * side, 4 * side), (3 * side, 6 * side)):
        theirs.set_input_size(size)
        assert_same_tokens(model, theirs, torch.randn(2, 3, *size))


def test_tables_of_both_kinds_are_refused():
    options = dict(depth=1, embed_dim=48, num_heads=4, use_shared_rel_pos_bias=True)
    both = timm.create_model('beit_base_patch16_224', **options)
    with pytest.raises(timm_archs.UnlikeOursError, match='for all layers, and one for each'):
        timm_archs.describe(both)
