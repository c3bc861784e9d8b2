"""timm's models by name, through what a config would do, against timm's own outputs; others are refused."""

import pytest
import timm
import torch
import torch.nn.functional as F
from backbone_variants import build_pvt
from foundation_kinds import shaken, vit
from timm.layers import SwiGLUPacked, resample_patch_embed
from timm.models import adapt_input_conv
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock, ResPostBlock

from mmlape.checkpoints import Pretrained, convert, convert_with_report

DEPTH = 3
SMALL = dict(embed_dims=384, depth=DEPTH, num_heads=6, mlp_ratio=4)
TINY = dict(embed_dims=192, depth=DEPTH, num_heads=3, mlp_ratio=4)
create_model = timm.create_model


@pytest.fixture
def published(monkeypatch):
    """timm's model by name with ``DEPTH`` layers, as if its weights had been downloaded."""
    made = {}

    def create(name, pretrained):
        assert pretrained
        if name not in made:
            made[name] = shaken(create_model(name, pretrained=False, depth=DEPTH), std=0.05)
        return made[name]

    monkeypatch.setattr(timm, 'create_model', create)
    return create


def test_dinov2_in_patches_of_16(published):
    """Patches resized from 14 to 16 pixels are embedded as before: what the pseudo-inverse is for."""
    source = published('vit_small_patch14_dinov2.lvd142m', True)
    model = vit(arch=SMALL, layer_scale=True, img_size=224)
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    report.demand(1)
    model.load_state_dict(state)
    assert report.resized == {
        'patch_embed.proj.weight': 'patches of 14 x 14 pixels to 16 x 16',
        'pos_embed': '1 + 37 x 37 rows to 1 + 14 x 14',
    }
    patches = torch.randn(5, 3, 14, 14)
    resized = F.interpolate(patches, size=(16, 16), mode='bicubic', antialias=True)
    expected = source.patch_embed.proj(patches).flatten(1)
    assert torch.allclose(model.patch_embed.proj(resized).flatten(1), expected, atol=1e-4)


def test_register_tokens_are_left_out_and_said(published):
    source = published('vit_small_patch14_reg4_dinov2.lvd142m', True)
    model = vit(arch=SMALL, layer_scale=True, patch_size=14, img_size=518)
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    report.demand(1)
    assert 'reg_token: register tokens' in str(report) and 'outputs differ' in str(report)
    # Its table has no row for the class token: nothing is added to that.
    assert report.resized == {'pos_embed': '0 + 37 x 37 rows to 1 + 37 x 37'}
    assert not state['pos_embed'][:, 0].any()
    assert torch.equal(state['pos_embed'][:, 1:], source.state_dict()['pos_embed'])


def micro(**options):
    options = dict(dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3), **options)
    return timm.models.VisionTransformer(**options)


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        (dict(init_values=0.1), 'a layer scale.*layer_scale=True'),
        (dict(qk_norm=True), 'qk_norm'),
        (dict(pre_norm=True), r'a norm before the first layer \(CLIP\)'),
        (dict(mlp_layer=SwiGLUPacked, mlp_ratio=8), 'a gated feed-forward network'),
        (dict(mlp_layer=SwiGLUPacked), 'a gated feed-forward network'),
        (dict(block_fn=ParallelThingsBlock), 'parallel branches'),
        (dict(block_fn=ParallelScalingBlock), 'parallel branches'),
        (dict(depth=4), 'the source has 4 layers, the model 2'),
        (dict(pos_embed='none'), 'no position table'),
    ],
)
def test_what_our_vit_cannot_be_is_refused(source, message):
    model = vit(arch=dict(embed_dims=24, depth=2, num_heads=3), img_size=32, patch_size=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=f'(?s)do not fit the VisionTransformer.*{message}'):
        convert(micro(**source).state_dict(), 'timm', model, min_matched=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ('made', 'message'),
    [
        (lambda: micro(block_fn=ResPostBlock), 'of the kind ResPostBlock'),
        (lambda: micro(act_layer='quick_gelu'), 'has the activation'),
        (lambda: micro(act_layer='gelu_tanh'), 'has the activation'),
        (lambda: micro(num_heads=4), 'has the number of heads 4, the model 3'),
        (lambda: create_model('resnet10t', pretrained=False), 'is a ResNet of timm'),
    ],
)
def test_layers_that_compute_something_else(made, message, monkeypatch):
    """Nothing in a state dict tells these apart; the model does."""
    model = vit(arch=dict(embed_dims=24, depth=2, num_heads=3), img_size=32, patch_size=8)
    monkeypatch.setattr(timm, 'create_model', lambda name, pretrained: made())
    with pytest.raises(ValueError, match=message):
        Pretrained('timm', model='vit_tiny_patch16_224')(model)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('deit_tiny_patch16_242', "no model 'deit_tiny_patch16_242'"),
        ('deit_tiny_patch16_224.augreg', r'Invalid pretrained tag \(augreg\)'),
        ('vit_giant_patch14_224', "no weights of 'vit_giant_patch14_224'"),
    ],
)
def test_names_are_checked_before_anything_is_built(name, message):
    with pytest.raises(ValueError, match=message):
        Pretrained('timm', model=name)


def test_without_a_network(monkeypatch):
    def fail(name, pretrained):
        raise FileNotFoundError('no connection\nand more')

    monkeypatch.setattr(timm, 'create_model', fail)
    with pytest.raises(ConnectionError, match=r"(?s)'vit_tiny.*no connection.*model\.safetensors"):
        Pretrained('timm', model='vit_tiny_patch16_224')(vit(arch=TINY))


@pytest.mark.parametrize('channels', [1, 2, 4, 7])
def test_first_layers_take_other_channels_as_timms_do(channels):
    """The patch embedding, of another patch size too, and overlapping patches; other layers are as they were."""
    source = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3
    )
    arch = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=4)
    weight = adapt_input_conv(channels, source.patch_embed.proj.weight.data)
    model = vit(img_size=32, patch_size=8, arch=arch, in_channels=channels)
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    report.demand(1)
    assert torch.equal(state['patch_embed.proj.weight'], weight)
    assert report.resized == {'patch_embed.proj.weight': f'3 channels to {channels}'}
    model = vit(img_size=32, patch_size=16, arch=arch, in_channels=channels)
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    wanted = resample_patch_embed(weight, [16, 16])
    torch.testing.assert_close(state['patch_embed.proj.weight'], wanted)
    pyramid, other = (
        build_pvt('V2', img_size=32),
        build_pvt('V2', img_size=32, in_channels=channels),
    )
    name = 'patch_embed1.proj.weight'
    state = convert_with_report(pyramid.state_dict(), 'mmlape', other)[0]
    assert torch.equal(state[name], adapt_input_conv(channels, pyramid.state_dict()[name]))
    state = convert_with_report(other.state_dict(), 'mmlape', other)[0]
    assert torch.equal(state[name], other.state_dict()[name])
