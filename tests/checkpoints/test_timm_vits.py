"""Every name of timm's plain ViTs: our network of that name gives timm's outputs, or the page says why not."""

import copy
import importlib.util

import pytest
import timm
import torch
from docs_pages import REPO
from foundation_kinds import assert_same_tokens, build, load, shaken, source, vit

from mmlape.checkpoints import Pretrained, convert
from mmlape.checkpoints.formats.timm_models import to_our_names
from mmlape.registry import MODELS

TOOL = REPO / 'tools' / 'developers' / 'timm_vits.py'
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
        sizes = dict(depth=2, embed_dim=48, num_heads=4, num_classes=0)
        return shaken(create_model(name, **{**sizes, **options}))

    monkeypatch.setattr(timm, 'create_model', create)
    return asked


@pytest.mark.parametrize(
    'name',
    [
        DINOV3,
        'naflexvit_base_patch16_siglip',
        'naflexvit_so400m_patch16_radio_v4',
        'naflexvit_base_patch16_parfac_gap',
    ],
)
def test_one_name_says_all(name, published):
    backbone = vit(arch=name, init_cfg=dict(type='mmlape.Pretrained', source='timm'))
    backbone.init_weights()
    assert published == [name]
    source, image = timm.create_model(name, pretrained=True), torch.randn(2, 3, 48, 80)
    assert_same_tokens(backbone, source, image)
    assert backbone.num_prefix_tokens == source.num_prefix_tokens
    assert vit(arch=name, out_type='featmap')(image)[0].shape == (2, 48, 3, 5)


def test_what_a_user_gives_stays_beside_what_the_name_says(published):
    name = 'vit_base_patch14_reg4_dinov2.lvd142m'
    options = dict(window_size=2, position=dict(type='mmlape.LearnedPosition', std=0.1))
    model = vit(arch=name, joining=dict(type='mmlape.LaPE'), **options)
    assert model.position.embedding.resize == 'bicubic_antialias'
    assert model.position.embedding.num_prefix_rows == 0
    assert model.blocks[0].attn.window_size == (2, 2)
    assert model.num_prefix_tokens == 5 and hasattr(model.blocks[0].ls1, 'gamma')
    assert vit(arch=name, final_norm=False, num_registers=0).norm is None


def test_an_adapter_around_it(published):
    """Of every kind of network, from weights that are there: backbones/test_vit_adapter.py."""
    adapter = dict(
        type='mmlape.ViTAdapter', vit=dict(arch=DINOV3), interaction_indexes=[[0, 0], [1, 1]]
    )
    adapter = MODELS.build(dict(adapter, init_cfg=dict(type='mmlape.Pretrained', source='timm')))
    adapter.init_weights()
    assert published == [DINOV3]
    source = timm.create_model(DINOV3)
    assert adapter.vit.blocks[1].attn.proj.weight.equal(source.blocks[1].attn.proj.weight)


def test_gradients_of_a_difference_of_two_maps():
    """In training, on an image that is not square."""
    kind = 'differential-parallel'
    ours, theirs = build(kind), copy.deepcopy(source(kind)[0]).train()
    load(kind, ours).demand(1)
    theirs.set_input_size((48, 80))
    image = torch.randn(2, 3, 48, 80)
    tokens = [ours(image)[0], theirs.forward_features(image)]
    torch.testing.assert_close(*tokens, atol=1e-4, rtol=0)
    for each in tokens:
        (each.sin() * torch.arange(48)).sum().backward()
    # Not of the position table, which has another size in timm now.
    gradients = {n: p.grad for n, p in theirs.named_parameters() if n.startswith('blocks.')}
    expected = to_our_names(gradients)
    assert {'blocks.3.attn.lambda_q2', 'blocks.3.attn.sub_norm.weight'} <= expected.keys()
    # A bias of zeros stands where timm has none.
    for name, gradient in expected.items():
        if gradient.any():
            found = ours.get_parameter(name).grad
            assert (found - gradient).abs().max() < 1e-3 * gradient.abs().max(), name


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('vit_small_patch16_dinov3.nothing', r'Invalid pretrained tag \(nothing\)'),
        ('resnet10t', 'it is a ResNet of timm, no plain Vision Transformer'),
        ('vit_small_r26_s32_224', 'its patches are made by a HybridEmbed'),
    ],
)
def test_what_ours_is_not(name, message):
    with pytest.raises(ValueError, match=message):
        vit(arch=name)


def test_weights_by_arch_need_a_name_of_timm():
    model = vit(arch='deit-tiny')
    with pytest.raises(ValueError, match="which timm does not know: 'deit-tiny'"):
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
