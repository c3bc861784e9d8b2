"""What timm's tools, and timm's own tests of its models, expect of a model."""

import fnmatch
import math

import pytest
import timm
import torch
from config_utils import CONFIGS, marked, multiply_adds
from mmengine.config import Config
from timm.models import FeatureInfo
from timm.models._manipulate import group_parameters

from mmlape import timm_models

pytestmark = pytest.mark.usefixtures('cheap_values')
NAMES = sorted(timm_models.MODELS_BY_NAME)
# The small ones: what a larger one has more of is width and depth.
SMALL = [
    'lape_deit_tiny_patch16_224',
    'lape_deit_tiny_distilled_patch16_224',
    'vit_tiny_star_patch16_224',
    'dtn_vit_tiny_star_patch16_224',
    'pvt_tiny',
    'pvt_tiny_dtn',
    'pvt_v2_b0_dtn',
    'lape_swin_tiny_patch4_window7_224',
    'lape_cvt_7_4_32',
]
POOLINGS = {
    'pvt_tiny': 'token',
    'pvt_v2_b0_dtn': 'avg',
    'lape_swin_tiny_patch4_window7_224': 'avg',
    'lape_cvt_7_4_32': dict(type='mmlape.SequencePooling'),
}
BY_SIZE = marked(NAMES, SMALL[::3])
IMAGES = torch.linspace(-2, 2, 2 * 3 * 64 * 80).view(2, 3, 64, 80)

# Others: tests/backbones/test_published_sizes.py.
FLOPS = {  # without DTN, with it
    'swin_tiny_patch4_window7_224': (4.51, 5.09),
    'swin_small_patch4_window7_224': (8.7, 9.4),
    't2t_vit_t_14': (6.1, 6.4),
}


def on_meta(name: str, **options):
    """A model without memory: shapes, names and counts."""
    with torch.device('meta'):
        return timm.create_model(name, device='meta', **options).eval()


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize('name', BY_SIZE)
def test_the_description_is_true(name):
    model = on_meta(name)
    cfg = model.default_cfg
    if name in POOLINGS:
        assert model.global_pool == POOLINGS[name]
    count = 10 if name.endswith('_32') else 1000
    assert (cfg['architecture'], cfg['num_classes'], cfg['url']) == (name, count, '')
    assert model.in_chans == cfg['input_size'][0] == 3
    names = model.state_dict().keys()
    for part in filter(None, (*as_tuple(cfg['classifier']), cfg['first_conv'])):
        assert f'{part}.weight' in names
    tokens = model.forward_features(torch.empty(1, *cfg['input_size'], device='meta'))
    if cfg['pool_size']:
        assert tokens.shape[1] - model.num_prefix_tokens == math.prod(cfg['pool_size'])
    vector, scores = (1, model.num_features), (1, count)
    assert model.forward_head(tokens, pre_logits=True).shape == vector
    assert model.forward_head(tokens).shape == scores

    model.reset_classifier(0)
    assert model.forward_head(tokens).shape == (1, model.head_hidden_size) == vector
    assert model.num_classes == 0
    assert on_meta(name, num_classes=0).forward_head(tokens).shape == vector
    model.reset_classifier(0, '')
    assert model.forward_head(tokens).shape == tokens.shape
    raw = on_meta(name, num_classes=0, global_pool='')
    assert raw.forward_head(tokens).shape == tokens.shape
    # A frozen model stays frozen without its head, and a new head is where the model is.
    model.requires_grad_(False).to(torch.float64)
    model.reset_classifier(0)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.reset_classifier(7)
    for head in as_tuple(model.get_classifier()):
        weight = next(head.parameters())
        assert (weight.device.type, weight.dtype) == ('meta', torch.float64)


@pytest.mark.parametrize('name', marked(NAMES, SMALL))
def test_parameters_are_grouped_by_depth_and_decay(name):
    model = on_meta(name)
    names = {parameter for parameter, _ in model.named_parameters()}
    spared = model.no_weight_decay()
    assert spared <= names
    expected = {n for n in names if fnmatch.fnmatch(n, '*pos_embed*') or n.endswith('_token')}
    assert expected <= spared
    assert {n for n in names if '.positions.' in n or '.ratio_' in n} <= spared
    assert {n for n in names if '.position.joining.' in n} <= spared
    weights = ('attn.qkv', 'attn.q.', 'attn.proj', 'mlp.')
    assert not any(part in n or n.startswith('head') for n in spared for part in weights)

    groups = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    assert groups.keys() == names
    pyramid = model.backbone.counts == 'stages'
    first, head = model.default_cfg['first_conv'], as_tuple(model.default_cfg['classifier'])[0]
    assert first is None or groups[f'{first}.weight'] == 0
    layers = [block for stage in model.backbone.stages() for block in stage.blocks]
    assert groups[f'{head}.weight'] == max(groups.values()) == len(layers) + 1
    coarse = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert len(set(coarse.values())) == (model.backbone.num_stages if pyramid else len(layers) + 2)


@pytest.mark.parametrize('name', marked(FLOPS, ['swin_tiny_patch4_window7_224']))
def test_multiply_adds_are_as_many_as_published(name):
    plain, published_dtn = FLOPS[name]
    dtn = f'{name}_dtn' if 'pvt' in name else f'dtn_{name.replace("deit", "vit")}'
    size = (1, 3, 224, 224)
    count, count_dtn = (multiply_adds(on_meta(model), *size) / 1e9 for model in (name, dtn))
    assert count == pytest.approx(plain, rel=0.02)
    # The separable map costs less than the published dense one.
    assert count < count_dtn < published_dtn * 1.005


@pytest.mark.parametrize('name', marked(SMALL, SMALL[::4]))
def test_it_trains_and_gives_features_on_any_size(name):
    model = timm.create_model(name, num_classes=42).train()
    model.backbone.eval()  # no draws: what is compared below is the same function
    distilled = hasattr(model, 'head_dist')
    if distilled:
        model.set_distilled_training()
    scores = model(IMAGES)
    if distilled:
        assert isinstance(scores, tuple)
        scores = torch.cat(scores)
    assert scores.shape == (4 if distilled else 2, 42)
    scores.square().sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    assert all(g is not None and g.isfinite().all() for g in gradients.values())

    # Recomputed in the backward pass, it is the same.
    model.zero_grad()
    model.set_grad_checkpointing()
    scores = model(IMAGES)
    (torch.cat(scores) if distilled else scores).square().sum().backward()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(parameter).grad, gradient)
    check_intermediate_features(model.eval())
    check_features_only(name, model)


@torch.no_grad()
def check_intermediate_features(model):
    info = FeatureInfo(model.feature_info, len(model.feature_info))
    final, features = model.forward_intermediates(IMAGES)
    torch.testing.assert_close(final, model.forward_features(IMAGES))
    assert len(features) == len(info) == model.backbone.num_units
    for channels, stride, feature in zip(info.channels(), info.reduction(), features, strict=True):
        assert feature.shape == (2, channels, 64 // stride, -(-80 // stride))
    (last,) = model.forward_intermediates(IMAGES, 1, norm=True, intermediates_only=True)
    cells = final[:, model.num_prefix_tokens :].mT.unflatten(2, last.shape[2:])
    torch.testing.assert_close(last, cells)
    ((flat, prefix),) = model.forward_intermediates(
        IMAGES, [1], True, stop_early=True, output_fmt='NLC', intermediates_only=True
    )
    torch.testing.assert_close(flat.mT.unflatten(2, features[1].shape[2:]), features[1])
    assert prefix.shape[::2] == (2, flat.shape[2])


@torch.no_grad()
def check_features_only(name, whole):
    model = timm.create_model(name, features_only=True, out_indices=(1, 2)).eval()
    wanted = whole.backbone.state_dict()
    # What comes after the last feature is not built.
    built = model.model.backbone.state_dict()
    assert sum(v.numel() for v in built.values()) < sum(v.numel() for v in wanted.values())
    same_table = 'dtn_vit' not in name  # which has no row for a class token that joins later
    if same_table:
        model.model.backbone.load_state_dict({key: wanted[key] for key in built})
    features = model(IMAGES)
    expected = whole.forward_intermediates(IMAGES, [1, 2], intermediates_only=True)
    channels, strides = model.feature_info.channels(), model.feature_info.reduction()
    for feature, same, channel, stride in zip(features, expected, channels, strides, strict=True):
        assert feature.shape == same.shape == (2, channel, 64 // stride, -(-80 // stride))
        if same_table:
            torch.testing.assert_close(feature, same)


def test_options_of_timms_script_arrive():
    model = timm.create_model(
        'lape_deit_tiny_patch16_224',
        num_classes=5,
        in_chans=1,
        img_size=(32, 48),
        global_pool='avg',
        drop_rate=0.1,
        drop_path_rate=0.2,
        joining='shared',
        position='sinusoidal_2d',
    )
    backbone = model.backbone
    assert backbone.grid == (2, 3) and backbone.drop_path_rate == 0.2 and model.head_drop.p == 0.1
    assert type(backbone.position.joining).__name__ == 'SharedJoining'
    assert model.eval()(torch.zeros(1, 1, 40, 24)).shape == (1, 5)
    tokens = model.forward_features(torch.zeros(1, 1, 32, 32))
    pooled = model.forward_head(tokens, pre_logits=True)
    torch.testing.assert_close(pooled, tokens[:, 1:].mean(1))
    # PVT without a class token pools instead, as PVTv2 does.
    assert 'backbone.cls_token' not in on_meta('pvt_tiny', global_pool='avg').state_dict()


@pytest.mark.parametrize('name', ['lape_cvt_7_4_32', 'pvt_v2_b0_dtn', 'lape_deit_tiny_patch16_224'])
def test_a_pooling_with_parameters(name):
    """It is the backbone's, so that checkpoints have it where MMPretrain looks for it."""
    pooling = dict(type='mmlape.SequencePooling')
    model = on_meta(name, global_pool=pooling)
    weight = model.backbone.pool.score.weight
    assert weight.shape == (1, model.num_features)
    image = torch.empty(2, 3, 64, 80, device='meta')
    classes = model.num_classes
    assert model(image).shape == (2, classes)
    model.reset_classifier(5, 'avg')
    assert model.backbone.pool is None and model(image).shape == (2, 5)
    model.to(torch.float64).reset_classifier(3, pooling)
    assert model.backbone.pool.score.weight.dtype == torch.float64
    assert model(image.double()).shape == (2, 3)


LAPE, DISTILLED = 'lape_deit_tiny_patch16_224', 'lape_deit_tiny_distilled_patch16_224'
WRONG = [
    (LAPE, dict(nonsense=1), 'nonsense'),
    ('pvt_v2_b0_dtn', dict(with_cls_token=True), 'with_cls_token'),
    (LAPE, dict(out_indices=2), 'features_only=True'),
    (LAPE, dict(joining='lap'), "'lape_sharing'"),
    (LAPE, dict(position='sine'), "'sinusoidal_1d'"),
    (LAPE, dict(global_pool='max'), 'global_pool'),
    (DISTILLED, dict(global_pool='avg'), "'token'"),
    (DISTILLED, dict(global_pool=dict(type='mmlape.SequencePooling')), r"\['', 'token'\]"),
    ('pvt_v2_b0_dtn', dict(global_pool='token'), "'avg'"),
    (LAPE, dict(num_classes=-1), 'num_classes'),
    (LAPE, dict(pretrained=True), 'No pretrained'),
]


@pytest.mark.parametrize(('name', 'options', 'message'), WRONG)
def test_what_is_wrong_is_refused(name, options, message):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        timm.create_model(name, **options)


def test_indices_and_distillation_are_checked():
    with pytest.raises(ValueError, match='indices must be -12 to 11'):
        timm.create_model('lape_deit_tiny_patch16_224', features_only=True, out_indices=[12])
    with pytest.raises(ValueError, match='no distillation token'):
        on_meta('pvt_tiny').set_distilled_training()


def test_timm_knows_them_without_losing_its_own():
    assert set(NAMES) <= set(timm.list_models(module='timm_models'))
    assert 'lape_deit_tiny_patch16_224' in timm.list_models('*lape*')
    assert 'pvt_v2_b2' in timm.list_models(module='pvt_v2')
    assert not timm.list_pretrained('*lape*')


def test_images_are_cropped_as_in_the_tests_of_our_configs():
    """T2T-ViT out of a short side of 248 pixels, as published; the others out of 256."""
    for name, path in (('t2t_vit_7', 'imagenet_t2t'), ('lape_ceit_tiny_patch16_224', 'imagenet')):
        (resize,) = (
            step
            for step in Config.fromfile(CONFIGS / f'_base_/datasets/{path}.py').test_pipeline
            if step['type'] == 'ResizeEdge'
        )
        told = timm.get_pretrained_cfg(name).crop_pct
        assert int(224 / told) == resize['scale']
