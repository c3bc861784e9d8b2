"""Rotary position with random coordinates in training: timm's random numbers, the same for all layers of a pass."""

import pytest
import timm
import torch
from backbone_variants import build_pvt, build_vit
from foundation_kinds import small, vit

from mmlape.backbones import timm_archs
from mmlape.checkpoints import convert
from mmlape.layout import Layout
from mmlape.registry import MODELS

ALL = dict(random=dict(shift=0.5, jitter=1.5, rescale=2.0))
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def rotary(**options):
    config = dict(type='mmlape.RotaryPosition', embed_dims=16, num_heads=2, grid=(4, 4))
    return MODELS.build({**config, **options})


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('vit_base_patch16_sapiens2', dict(num_kv_heads=(4, 2))),
        ('vit_small_patch16_dinov3', dict(shift=0.5, jitter=1.5, rescale=2)),
        ('vit_base_patch16_rope_224', dict(shift=0.5, jitter=1.5)),  # columns first
        ('eva02_tiny_patch14_224', dict(shift=0.5, jitter=1.5, rescale=2)),  # cells of another grid
    ],
)
def test_equal_seeds_give_timms_outputs(name, options):
    names = dict.fromkeys(('shift', 'jitter', 'rescale'), 'rope_{}_coords')
    options = {names.get(key, key).format(key): value for key, value in options.items()}
    side = 64 if '16' in name.split('_')[2] else 56
    source, arch = small(name, img_size=side, dynamic_img_size=True, **options)
    model = vit(arch=arch)
    model.load_state_dict(convert(source.state_dict(), 'timm', model, min_matched=1))
    for size in ((4, 4), (3, 5)):
        image = torch.randn(2, 3, *(side * model.patch_embed.patch_size[0] for side in size))
        found = []
        for seed, training in ((1, True), (2, True), (1, False)):
            with torch.no_grad():
                torch.manual_seed(seed)
                expected = source.train(training).forward_features(image)
                torch.manual_seed(seed)
                found.append(model.train(training)(image)[0])
            torch.testing.assert_close(found[-1], expected, atol=1e-4, rtol=0)
        assert not torch.allclose(found[0], found[1], atol=1e-3)
        assert not torch.allclose(found[0], found[2], atol=1e-3)


def test_the_published_value_is_taken_over():
    arch = timm_archs.timm_arch('vit_base_patch16_sapiens2')
    assert arch['attention_position']['random'] == dict(rescale=2)
    dinov3 = timm_archs.timm_arch('vit_base_patch16_dinov3')
    assert 'random' not in dinov3['attention_position']


def test_learned_turns_with_random_coordinates_are_refused():
    source = timm.create_model(
        'vit_base_patch16_rope_mixed_224', depth=1, embed_dim=48, num_heads=4, rope_shift_coords=0.5
    )
    with pytest.raises(timm_archs.UnlikeOursError, match=r'random coordinates.*shift.*0.5'):
        timm_archs.describe(source)


def build(**options):
    position = dict(type='mmlape.RotaryPosition', coordinates='centred', **ALL)
    return build_vit(attention_position=position, out_type='raw', **options)


def test_one_draw_for_all_layers_of_a_pass(monkeypatch):
    """Before and after prefix tokens join, and in recomputed layers: the loss and gradients are those of plain ones."""
    plain, recomputed = build(prefix_after=2), build(prefix_after=2, with_cp=True)
    recomputed.load_state_dict(plain.state_dict())
    count = []
    draw = type(plain.inside).draw
    monkeypatch.setattr(type(plain.inside), 'draw', lambda self: count.append(1) or draw(self))
    image = torch.randn(2, 3, 48, 80)
    for model in (plain, recomputed):
        torch.manual_seed(3)
        model.train()(image)[0].square().mean().backward()
    assert len(count) == 2
    for mine, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_evaluation_and_what_is_frozen_draw_nothing():
    model, image = build(frozen_stages=0), torch.randn(1, 3, 64, 64)
    states = []
    with torch.no_grad():
        for training in (True, False):
            states.append(torch.get_rng_state())
            first, second = (model.train(training)(image)[0] for _ in range(2))
            assert torch.equal(first, second)
    assert torch.equal(states[0], torch.get_rng_state())


def test_deployed_and_under_autocast():
    model, image = build(), torch.randn(1, 3, 64, 64)
    model.switch_to_deploy()
    with torch.no_grad():
        first, second = (model.train()(image)[0] for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.equal(model.eval()(image)[0], model(image)[0])
        with torch.autocast('cpu', torch.bfloat16):
            assert model.train()(image)[0].isfinite().all()


def test_keys_on_a_coarser_grid_have_the_coordinates_of_the_pass():
    position = rotary(**ALL).train()
    query, key = Layout((4, 4)), Layout((4, 4), 1)
    drawn = position.draw()
    rows = position(query, key, drawn).rows
    for mine, other in zip(*rows, strict=True):
        assert torch.equal(mine, other[1:])
    shift, factor = drawn
    coarse = position(query, Layout((2, 2)), drawn).rows[1]
    places = (torch.tensor([0.5, 2.5]) + shift[0]) * factor[0]
    torch.testing.assert_close(coarse[0][::2, 0], places.cos())
    pyramid = build_pvt('V2', attention_position=dict(type='mmlape.RotaryPosition', **ALL))
    pyramid.train()(torch.randn(1, 3, 64, 64))[0].sum().backward()
