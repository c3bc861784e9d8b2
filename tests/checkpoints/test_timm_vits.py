"""Every name of timm's plain ViTs: our network of that name gives timm's outputs, or the page says why not."""

import importlib.util

import pytest
import timm
import torch
from docs_pages import REPO

from mmlape.backbones import timm_archs
from mmlape.checkpoints import Pretrained, convert
from mmlape.registry import MODELS

TOOL = REPO / 'tools' / 'model_converters' / 'timm_parts' / 'comparison.py'
spec = importlib.util.spec_from_file_location('timm_vits', TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
create_model = timm.create_model
NAMES = tool.names()
PAGE = tool.read_results(tool.PAGE)
CASES = {tool.network_key(name): name for name in reversed(NAMES)}  # by the first name of each
# Every fifth with the fast tests, all with the slow ones.
SOME = [
    pytest.param(name, marks=() if not index % 5 else pytest.mark.slow)
    for index, name in enumerate(CASES.values())
]
DINOV3 = 'vit_small_patch16_dinov3.lvd1689m'
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def vit(**options):
    return MODELS.build(dict(dict(type='mmlape.VisionTransformer', out_type='raw'), **options))


def small(name, **options):
    """timm's model with two layers of 48 channels, and its ``arch``."""
    options = dict(dict(depth=2, embed_dim=48, num_heads=4, num_classes=0), **options)
    model = create_model(name, **options).eval()
    return model, timm_archs.describe(model)


def test_the_page_has_every_name():
    assert list(PAGE) == NAMES
    equal = sum(result == tool.EQUAL for result in PAGE.values())
    assert equal >= 0.95 * len(NAMES)
    assert f'{equal} of {len(NAMES)} names of timm {timm.__version__}' in tool.PAGE.read_text()


@pytest.mark.parametrize('name', SOME)
def test_outputs_are_as_the_page_says(name):
    assert tool.compare(name) == PAGE[name]


def test_names_of_a_case_have_one_result():
    for name in NAMES:
        assert PAGE[name] == PAGE[CASES[tool.network_key(name)]]


def test_a_difference_is_seen(monkeypatch):
    """The comparison can fail: turned by other angles, or with another activation."""
    describe = tool.describe

    def other(model):
        arch = describe(model)
        arch['mlp']['act'] = 'gelu_tanh'
        return arch

    monkeypatch.setattr(tool, 'describe', other)
    assert tool.compare('vit_small_patch16_224').startswith('outputs differ')


@pytest.fixture
def published(monkeypatch):
    """timm's models of the tests' own size, as if downloaded; counts what was asked for."""
    asked = []

    def create(name, pretrained=False, **options):
        torch.manual_seed(0)
        if pretrained:
            asked.append(name)
        return small(name, **options)[0]

    monkeypatch.setattr(timm, 'create_model', create)
    return asked


def test_one_name_says_all(published):
    backbone = vit(arch=DINOV3, init_cfg=dict(type='mmlape.Pretrained', source='timm'))
    backbone.init_weights()
    assert published == [DINOV3]
    source = timm.create_model(DINOV3, pretrained=True).eval()
    image = torch.randn(2, 3, 48, 80)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.eval()(image)[0], source.forward_features(image), atol=1e-4, rtol=0
        )
    assert backbone.num_prefix_tokens == 5
    assert vit(arch=DINOV3, out_type='featmap').eval()(image)[0].shape == (2, 48, 3, 5)


def test_what_a_user_gives_stays_beside_what_the_name_says(published):
    name = 'vit_base_patch14_reg4_dinov2.lvd142m'
    options = dict(window_size=2, position=dict(type='mmlape.LearnedPosition', std=0.1))
    model = vit(arch=name, joining=dict(type='mmlape.LaPE'), **options)
    assert model.position.embedding.resize == 'bicubic_antialias'
    assert model.position.embedding.num_prefix_rows == 0
    assert model.blocks[0].attn.window_size == (2, 2)
    assert model.num_prefix_tokens == 5 and hasattr(model.blocks[0].ls1, 'gamma')
    assert vit(arch=name, final_norm=False, num_registers=0).norm is None


@pytest.mark.parametrize(
    'name', ['vit_base_patch14_reg4_dinov2.lvd142m', DINOV3, 'eva02_base_patch16_clip_224']
)
def test_adapter_around_it(name, published):
    adapter = MODELS.build(
        dict(
            type='mmlape.ViTAdapter',
            vit=dict(type='mmlape.VisionTransformer', arch=name, img_size=56),
            conv_inplanes=4,
            deform_num_heads=2,
            interaction_indexes=[[0, 0], [1, 1]],
            init_cfg=dict(type='mmlape.Pretrained', source='timm'),
        )
    )
    adapter.init_weights()
    assert published == [name]
    maps = adapter(torch.randn(1, 3, 50, 70))
    assert [tuple(each.shape[2:]) for each in maps] == [(13, 18), (7, 9), (4, 5), (2, 3)]
    sum(each.square().mean() for each in maps).backward()
    assert all(p.grad is not None for p in adapter.parameters())


def test_new_layers_decay_and_depth(published):
    model = vit(arch='vit_base_patch16_clip_224')
    assert model.get_layer_depth('norm_pre.weight') == (0, 4)
    frozen = vit(arch='vit_base_patch16_clip_224', frozen_stages=0)
    assert not frozen.norm_pre.weight.requires_grad and frozen.blocks[0].norm1.weight.requires_grad


@pytest.mark.parametrize(
    'name', ['vit_base_patch16_rope_mixed_224', DINOV3, 'vit_giantopt_patch16_siglip_256']
)
def test_autocast_recomputation_and_deployment(name, published):
    model = vit(arch=name, with_cp=True)
    plain = vit(arch=name)
    plain.load_state_dict(model.state_dict())
    image = torch.randn(1, 3, 64, 48)
    outputs = [each.train()(image)[0] for each in (model, plain)]
    for output in outputs:
        output.square().mean().backward()
    torch.testing.assert_close(*outputs)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    with torch.no_grad():
        before = model.eval()(image)[0]
        with torch.autocast('cpu', torch.bfloat16):
            torch.testing.assert_close(model(image)[0].float(), before, atol=0.025, rtol=0)
        model.switch_to_deploy()
        assert torch.equal(model(image)[0], before) and torch.equal(model(image)[0], before)


def test_shared_keys_are_repeated():
    source, arch = small('vit_base_patch16_sapiens2', num_kv_heads=(4, 2), img_size=64)
    model = vit(arch=arch)
    state = convert(source.state_dict(), 'timm', model, min_matched=1)
    rows = state['blocks.1.attn.qkv.weight'][48:96].unflatten(0, (4, 12))
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[1], rows[2])


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('vit_dpwee_patch16_reg1_gap_256', 'of the kind DiffParallelScalingBlock'),
        ('vit_dwee_patch16_reg1_gap_256', 'its attention is the difference of two'),
        ('vit_small_patch16_dinov3.nothing', r'Invalid pretrained tag \(nothing\)'),
        ('resnet10t', 'it is a ResNet of timm, no plain Vision Transformer'),
        ('vit_small_r26_s32_224', 'its patches are made by a HybridEmbed'),
    ],
)
def test_what_ours_is_not(name, message):
    with pytest.raises(ValueError, match=message):
        vit(arch=name)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(pre_norm=dict(type='mmlape.TokenIN')), 'pre_norm must be a norm of each token'),
        (dict(attention=dict(qk_norm=dict(type='mmlape.TokenBN'))), 'qk_norm must be a norm of each'),
        (dict(mlp=dict(act='gelo')), "act must be one of .*'gelu'"),
        (dict(attention_position=dict(type='mmlape.RotaryPosition', reference=3)), 'is for rescale=True'),
        (
            dict(attention_position=dict(type='mmlape.RotaryPosition', coordinates='centred', offset=1.0)),
            'know no cells',
        ),
        (dict(attention_position=dict(type='mmlape.RotaryPosition', pairs='thirds')), 'pairs must be'),
    ],
)  # fmt: skip
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        vit(arch=dict(embed_dims=16, depth=1, num_heads=2), img_size=32, **options)


def test_weights_by_arch_need_a_name_of_timm():
    model = vit(arch='deit-tiny')
    with pytest.raises(ValueError, match="no name of timm: 'deit-tiny'"):
        Pretrained('timm')(model)
    with pytest.raises(ValueError, match='give either'):
        Pretrained('mmlape')


def test_networks_that_names_of_weights_do_not_tell_apart(published):
    """Branches side by side or one after the other; turns by position, which have no weights."""
    parallel, serial = 'vit_pwee_patch16_reg1_gap_256', 'vit_wee_patch16_reg1_gap_256'
    states = {name: timm.create_model(name).state_dict() for name in (parallel, serial)}
    with pytest.raises(ValueError, match='parallel branches in a layer'):
        convert(states[parallel], 'timm', vit(arch=serial), min_matched=0)
    twice, once = 'vit_small_patch16_18x2_224', 'vit_small_patch16_224'
    with pytest.raises(ValueError, match='parallel branches in a layer'):
        convert(timm.create_model(twice).state_dict(), 'timm', vit(arch=once), min_matched=0)
    with pytest.raises(ValueError, match=r'kind Block, ours of the kind SeveralBranchesBlock'):
        Pretrained('timm', model=once)(vit(arch=twice))
    with pytest.raises(ValueError, match='entries that this model has no place for'):
        convert(states[serial], 'timm', vit(arch=parallel), min_matched=0)
    other = dict(type='mmlape.RotaryPosition', temperature=10.0)
    for attention_position in (other, False):
        model = vit(arch=DINOV3, attention_position=attention_position)
        with pytest.raises(ValueError, match=r'has inside its attention RotaryPosition\(.*centred'):
            Pretrained('timm', model=DINOV3)(model)


def test_what_is_random_in_training_is_the_users(published):
    random = dict(type='mmlape.RotaryPosition', random=dict(rescale=2.0))
    model = vit(arch=DINOV3, attention_position=random)
    Pretrained('timm', model=DINOV3)(model)
    assert model.inside.random.rescale == 2 and model.inside.rule.coordinates == 'centred'


@pytest.mark.parametrize(
    'name',
    [
        'naflexvit_base_patch16_siglip',
        'naflexvit_so400m_patch16_radio_v4',
        'naflexvit_base_patch16_parfac_gap',
    ],
)
def test_naflex_by_one_name(name, published):
    backbone = vit(arch=name, init_cfg=dict(type='mmlape.Pretrained', source='timm'))
    backbone.init_weights()
    source, image = timm.create_model(name, pretrained=True).eval(), torch.randn(2, 3, 48, 80)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.eval()(image)[0], source.forward_features(image), atol=1e-4, rtol=0
        )


def test_names_of_dinov3s_own_code():
    source, arch = small('vit_small_plus_patch16_dinov3', img_size=64)
    state = source.state_dict()
    state['storage_tokens'] = state.pop('reg_token')
    for name in [name for name in state if '.mlp.fc1_g.' in name]:
        other = name.replace('fc1_g', 'fc1_x')
        state[name.replace('fc1_g', 'w12')] = torch.cat([state.pop(name), state.pop(other)])
        fc2 = name.replace('fc1_g', 'fc2')
        state[fc2.replace('fc2', 'w3')] = state.pop(fc2)
    model = vit(arch=arch).eval()
    model.load_state_dict(convert(state, 'timm', model, min_matched=1))
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            model(image)[0], source.forward_features(image), atol=1e-5, rtol=0
        )
