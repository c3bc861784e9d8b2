"""Layer-wise learning rates: who has which depth, which rate and which weight decay."""

import pytest
import torch
from backbone_variants import DTN, VARIANTS, build_adapter, build_pvt, build_vit
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, DefaultScope
from torch import nn

from mmlape.backbones.base import exempt_parameters
from mmlape.norm.dtn import Ratio
from mmlape.norm.dtn_maps import LearnedMap
from mmlape.training import optimizers

LR, DECAY, RATE = 6e-5, 0.01, 0.95


def build(model, optimizer=None, **paramwise):
    config = dict(
        type='OptimWrapper',
        optimizer=optimizer or dict(type='AdamW', lr=LR, weight_decay=DECAY),
        constructor='mmlape.LayerDecayOptimizerConstructor',
        paramwise_cfg={"decay_rate": RATE, **paramwise},
    )
    return build_optim_wrapper(model, config)


def settings(model, wrapper):
    """``{name: (learning rate, weight decay, name of its group)}``; fails where a parameter is in two groups."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {}
    for group in wrapper.optimizer.param_groups:
        for parameter in group['params']:
            assert names[parameter] not in found
            found[names[parameter]] = group['lr'], group['weight_decay'], group['group_name']
    return found


class Detector(nn.Module):
    """Anything with a backbone and more."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(3, 5)


def published_depth(name, depth):
    """The numbering of BEiT and ViT-Adapter, by names without the backbone's prefix."""
    if name in ('cls_token', 'mask_token', 'pos_embed') or name.startswith('patch_embed'):
        return 0
    return int(name.split('.')[1]) + 1 if name.startswith('blocks') else depth + 1


@pytest.mark.parametrize('name', VARIANTS)
def test_every_parameter_of_every_variant_is_in_one_group(name):
    model = Detector(VARIANTS[name]())
    found = settings(model, build(model))
    assert set(found) == {n for n, p in model.named_parameters() if p.requires_grad}
    _, count = model.backbone.get_layer_depth('head.weight', 'backbone.')
    rates = {round(RATE**power * LR, 15) for power in range(count)}
    assert {round(lr, 15) for lr, _, _ in found.values()} == rates
    flat = {n for n, p in model.named_parameters() if p.ndim <= 1}
    assert all(found[n][1] == 0 for n in flat)
    # What is multiplied with tokens or pixels decays; a position never does, CeiT's embedding of layers does.
    for n, p in model.named_parameters():
        is_position = 'position' in n.replace('layer_position', '') or n.endswith(
            ('token', 'level_embed')
        )
        is_map = n.endswith('positions.weight')
        assert found[n][1] == (0 if p.ndim <= 1 or is_position or is_map else DECAY), n


def test_a_vit_is_numbered_as_published():
    vit = build_vit(arch=dict(embed_dims=24, depth=12, num_heads=3), img_size=32)
    state_names = {'position.embedding.pos_embed': 'pos_embed'}
    found = settings(vit, build(vit))
    for name, (lr, _, _) in found.items():
        depth = published_depth(state_names.get(name, name), 12)
        assert lr == pytest.approx(LR * RATE ** (13 - depth)), name
        assert vit.get_layer_depth(f'x.{name}', 'x.') == (depth, 14)
    assert found['patch_embed.proj.weight'][0] == pytest.approx(LR * RATE**13)
    assert found['norm.weight'][0] == LR


def test_an_adapter_has_the_numbers_of_its_vit_and_the_full_rate_elsewhere():
    adapter = build_adapter(dict(joining=dict(type='mmlape.LaPE')))
    for name, _ in adapter.named_parameters():
        expected = 5
        if name.startswith('vit.'):
            inner = name[4:].replace('position.joining.norms', 'blocks')
            inner = inner.replace('position.embedding.', '')
            expected = published_depth(inner, 4)
        assert adapter.get_layer_depth(name) == (expected, 6), name


LAPE, NAMED = dict(type='mmlape.LaPE'), dict(layers=[1, 3])
GATED = dict(type='mmlape.LaPEWarmStart', construction='gate', **NAMED)
OF_LAYERS = {
    f'position.joining.norms.{n}.{part}': 2 * n + 2 for n in (0, 1) for part in ('weight', 'bias')
}
# A network, the number of depths, and the depths of some of its parameters.
DEPTHS = {
    'LaPE of two layers': (lambda: build_vit(joining=dict(LAPE, **NAMED)), 6, OF_LAYERS),
    'gates too': (
        lambda: build_vit(joining=GATED), 6,
        {**OF_LAYERS, 'position.joining.gates.0.weight': 2, 'position.joining.gates.1.weight': 4},
    ),
    # Where they join.
    'later tokens': (
        lambda: build_vit(norm_cfg=dict(DTN, layers=3), with_dist_token=True), 6, dict(cls_token=3, dist_token=3)
    ),
    'first norm': (lambda: build_vit(pre_norm=True), 6, {'norm_pre.weight': 0, 'blocks.0.norm1.weight': 1}),
    # 1, 2, 1, 1 blocks, which are counted through all stages.
    'pyramid': (
        lambda: build_pvt(with_cls_token=True, joining=LAPE), 7,
        {
            'patch_embed1.proj.weight': 0, 'position1.embedding.pos_embed': 0, 'position1.joining.norms.0.weight': 1,
            'block1.0.attn.q.weight': 1, 'patch_embed2.proj.weight': 1, 'position2.embedding.pos_embed': 1,
            'block2.0.mlp.fc1.weight': 2, 'block2.1.mlp.fc1.weight': 3, 'position2.joining.norms.1.bias': 3,
            'patch_embed3.norm.weight': 3, 'block3.0.norm1.weight': 4, 'cls_token': 4, 'block4.0.norm2.bias': 5,
        },
    ),
    'pyramid V2': (
        lambda: build_pvt('V2'), 7, {'norm1.weight': 1, 'norm2.weight': 3, 'norm3.weight': 4, 'norm4.weight': 6}
    ),
    # Shorter networks count the layers that they have.
    'two outputs': (lambda: build_vit(out_indices=[0, 2]), 5, {'blocks.2.norm1.weight': 3}),
    'two stages': (lambda: build_pvt(out_indices=[0, 1]), 5, {'block2.1.norm1.weight': 3}),
}  # fmt: skip


@pytest.mark.parametrize(('build', 'count', 'expected'), DEPTHS.values(), ids=DEPTHS)
def test_depths(build, count, expected):
    model = build()
    assert {name: model.get_layer_depth(name) for name in expected} == {
        name: (depth, count) for name, depth in expected.items()
    }
    joined = {n for n, _ in model.named_parameters() if n.startswith('position.joining')}
    assert joined <= set(expected)


def test_ratios_and_maps_of_dtn_have_groups_of_their_own():
    model = Detector(build_vit(norm_cfg=DTN))
    own = {
        f'{path}.{name}'
        for path, module in model.named_modules()
        if isinstance(module, (Ratio, LearnedMap))
        for name, _ in module.named_parameters()
    }
    assert len(own) == 2 * 2 * 3  # blocks, norms, two ratios and a map
    found = settings(model, build(model, dtn_lr_mult=0.1, dtn_decay_mult=0.5))
    for name, (lr, decay, group) in found.items():
        layer = int(name.split('.')[2]) if name.startswith('backbone.blocks') else None
        if name in own:
            assert group == f'layer {layer + 1}, DTN'
            assert lr == pytest.approx(0.1 * LR * RATE ** (4 - layer))
            assert decay == pytest.approx(0.5 * DECAY)
        else:
            assert 'DTN' not in group
    plain = settings(model, build(model))
    assert {plain[name][1] for name in own} == {0}
    assert plain['backbone.blocks.0.norm1.weight'][2] == 'layer 1, no decay'


def test_mmengines_options():
    model = Detector(build_pvt('V2', norm_cfg=DTN))
    found = settings(
        model,
        build(
            model,
            norm_decay_mult=0.5,
            bias_decay_mult=0.25,
            bias_lr_mult=2.0,
            dwconv_decay_mult=0.125,
            custom_keys={'head': dict(lr_mult=10), 'head.bias': dict(decay_mult=3)},
        ),
    )
    block = 'backbone.block1.0'
    scale = RATE**5
    assert found[f'{block}.norm1.weight'][:2] == pytest.approx((LR * scale, 0.5 * DECAY))
    assert found[f'{block}.norm1.bias'][:2] == pytest.approx((LR * scale, 0.5 * DECAY))
    assert found[f'{block}.attn.q.bias'][:2] == pytest.approx((2 * LR * scale, 0.25 * DECAY))
    assert found[f'{block}.mlp.dwconv.dwconv.weight'][1] == pytest.approx(0.125 * DECAY)
    assert found['head.weight'][:2] == pytest.approx((10 * LR, DECAY))
    assert found['head.bias'][:2] == pytest.approx((LR, 3 * DECAY))


NO_DECAY = [
    'pos_embed', 'absolute_pos_embed', 'relative_position_bias_table', 'level_embed', 'cls_token', 'dist_token',
    'reg_token', 'mask_token', 'cls_emb',
]  # fmt: skip


def test_positions_and_tokens_of_any_module_do_not_decay():
    model = Detector(build_vit())
    model.others = nn.ParameterDict({name: torch.zeros(2, 3) for name in [*NO_DECAY, 'table']})
    found = settings(model, build(model))
    decays = {name.rpartition('.')[2]: found[name][1] for name in found if 'others' in name}
    assert decays == {**dict.fromkeys(NO_DECAY, 0.0), 'table': DECAY}
    exempt = {name.rpartition('.')[2] for name in exempt_parameters(model) if 'others' in name}
    assert exempt == set(NO_DECAY)


def test_frozen_parameters_are_left_out_and_shared_ones_counted_once():
    model = Detector(build_vit(frozen_stages=2))
    model.tied = nn.Linear(3, 5)
    model.tied.weight = model.head.weight
    found = settings(model, build(model))
    assert not any('blocks.0' in name or 'blocks.1' in name for name in found)
    assert 'backbone.blocks.2.norm1.weight' in found and 'head.weight' in found


def test_mmpretrain_numbers_ours_alike_and_we_number_its_own():
    import mmpretrain.engine  # noqa: F401 (registers its constructor)
    from mmpretrain.models import ImageClassifier

    ours = dict(type='mmlape.VisionTransformer', img_size=32, joining=dict(type='mmlape.LaPE'))
    ours['arch'] = dict(embed_dims=24, depth=3, num_heads=3)
    # As in a run: earlier tests leave other scopes behind.
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = ImageClassifier(backbone=ours)
    theirs = dict(
        type='OptimWrapper',
        optimizer=dict(type='AdamW', lr=LR, weight_decay=DECAY),
        constructor='mmpretrain.LearningRateDecayOptimWrapperConstructor',
        paramwise_cfg=dict(layer_decay_rate=RATE),
    )
    groups = build_optim_wrapper(model, theirs).optimizer.param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    rates = {names[p]: group['lr'] for group in groups for p in group['params']}
    assert rates == pytest.approx(
        {n: lr for n, (lr, _, _) in settings(model, build(model)).items()}
    )

    arch = dict(embed_dims=24, num_layers=3, num_heads=3, feedforward_channels=48)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = ImageClassifier(backbone=dict(type='VisionTransformer', arch=arch, img_size=32))
    found = settings(model, build(model))
    assert found['backbone.pos_embed'][0] == pytest.approx(LR * RATE**4)
    assert found['backbone.layers.1.attn.qkv.weight'][0] == pytest.approx(LR * RATE**2)


def test_the_table_is_logged(monkeypatch):
    lines = []
    monkeypatch.setattr(
        optimizers, 'print_log', lambda text, logger: lines.extend(text.splitlines())
    )
    build(Detector(build_vit()))
    text = '\n'.join(lines)
    assert 'decay rate 0.95 over the layers of backbone (VisionTransformer)' in text
    assert ' '.join(lines[1].split()) == 'layer kind scale lr weight decay tensors values names'
    # 24 * 3 * 16 * 16 values of the patch embedding, at 0.95^5
    row = next(line.split() for line in lines if 'patch_embed.proj.weight' in line)
    assert row[:7] == ['0', 'decay', '0.7738', '4.64e-05', '0.01', '1', '18,432']
    values = [int(line.split('  ')[-2].replace(',', '')) for line in lines[2:]]
    model = Detector(build_vit())
    assert sum(values) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ('paramwise', 'error', 'words'),
    [
        (dict(num_layers=12), ValueError, "num_layers"),
        (dict(custom_keys={'pos_embd': dict(lr_mult=1)}), ValueError, "did you mean 'pos_embed'"),
        (dict(full_rate_layers=-1), ValueError, 'full_rate_layers must be at least 0, got -1'),
        (dict(custom_keys={'head': dict(lr=1)}), ValueError, "custom_keys\\['head'\\]"),
        (dict(custom_keys={'head': 0.1}), TypeError, "custom_keys\\['head'\\] must be a dict"),
        (dict(custom_keys={'head': dict(lr_mult='1')}), TypeError, 'lr_mult must be a number'),
    ],
)
def test_mistakes_are_named(paramwise, error, words):
    with pytest.raises(error, match=words):
        build(Detector(build_vit()), **dict(paramwise))


def eomt():
    arch = dict(embed_dims=24, depth=3, num_heads=3)
    vit = dict(arch=arch, img_size=32, joining=dict(type='mmlape.LaPE'))
    return Detector(MODELS.build(dict(type='mmlape.EoMT', vit=vit, num_classes=2, num_blocks=2)))


def test_last_layers_at_the_full_rate():
    """As EoMT trains the blocks of its queries; LaPE's norms go with their blocks."""
    model = eomt()
    found = settings(model, build(model, full_rate_layers=2))
    lower = {name: lr for name, (lr, _, _) in found.items() if lr != LR}
    vit = 'backbone.vit'
    assert lower[f'{vit}.patch_embed.proj.weight'] == pytest.approx(LR * RATE**4)
    assert lower[f'{vit}.blocks.0.norm1.weight'] == pytest.approx(LR * RATE**3)
    later = (f'{vit}.blocks.1', f'{vit}.blocks.2', f'{vit}.position.joining.norms.1')
    assert not any(name.startswith(later) for name in lower)
    assert f'{vit}.position.joining.norms.1.weight' in found


def test_new_parameters_warm_up_before_layers():
    model, scheduler = eomt(), dict(type='mmlape.TwoStagePolyLR', end=13, warmup=[2, 4])
    wrapper = build(model, full_rate_layers=2)
    scheduler = PARAM_SCHEDULERS.build(
        dict(scheduler, power=0.5, by_epoch=False), default_args=dict(optimizer=wrapper)
    )
    new, layers = [], []
    for _ in range(14):
        found = settings(model, wrapper)
        new.append(found['backbone.q.weight'][0] / LR)
        layers.append(found['backbone.vit.blocks.0.norm1.weight'][0] / LR / RATE**3)
        assert found['backbone.vit.norm.weight'][0] == found['head.bias'][0]
        assert found['head.bias'][0] == pytest.approx(new[-1] * LR)
        assert found['backbone.vit.blocks.2.norm1.bias'][0] == pytest.approx(layers[-1] * LR)
        wrapper.optimizer.step()
        scheduler.step()
    down = [(1 - step / 11) ** 0.5 for step in range(12)]
    assert new[:13] == pytest.approx([0, 0.5, *down[:11]])
    down = [(1 - step / 7) ** 0.5 for step in range(8)]
    assert layers[:13] == pytest.approx([0, 0, 0, 0.25, 0.5, 0.75, *down[:7]])
    assert (new[13], layers[13]) == (new[12], layers[12])
    epochs = dict(type='mmlape.TwoStagePolyLR', end=5, by_epoch=True, convert_to_iter_based=True)
    longer = PARAM_SCHEDULERS.build(
        dict(epochs, epoch_length=400), default_args=dict(optimizer=wrapper)
    )
    assert (longer.end, longer.by_epoch, longer.warmup) == (2000, False, [500, 1000])
    later = PARAM_SCHEDULERS.build(
        dict(epochs, epoch_length=1000, begin=1), default_args=dict(optimizer=wrapper)
    )
    assert (later.begin, later.end, later.steps) == (1000, 5000, 4000)


@pytest.mark.parametrize(
    ('options', 'error', 'words'),
    [
        (dict(warmup=[2, 11]), ValueError, r'together below 13, got \[2, 11\]'),
        (dict(warmup=[2]), ValueError, 'warmup must be two numbers'),
        (dict(warmup=4), TypeError, 'warmup must be'),
        (dict(power=0), ValueError, 'power must be'),
    ],
)
def test_mistakes_in_the_schedule_are_named(options, error, words):
    options = dict(type='mmlape.TwoStagePolyLR', end=13, warmup=(2, 4)) | options
    with pytest.raises(error, match=words):
        PARAM_SCHEDULERS.build(options, default_args=dict(optimizer=build(eomt())))
    if error is TypeError:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
        options = dict(type='mmlape.TwoStagePolyLR', end=2000)
        with pytest.raises(ValueError, match=r'mmlape\.LayerDecayOptimizerConstructor'):
            PARAM_SCHEDULERS.build(options, default_args=dict(optimizer=optimizer))


def test_a_backbone_may_number_its_layers_itself():
    """Also one of ours, by its own get_layer_depth."""
    model = Detector(build_vit())

    class Own(type(model.backbone)):
        def get_layer_depth(self, param_name, prefix=''):
            assert param_name.startswith(prefix)
            return int('blocks.1' in param_name), 3

    model.backbone.__class__ = Own
    found = settings(model, build(model))
    rates = {name: round(lr / LR, 6) for name, (lr, _, _) in found.items()}
    assert rates['head.weight'] == 1 and rates['backbone.blocks.1.norm1.weight'] == RATE
    assert rates['backbone.blocks.0.norm1.weight'] == rates['backbone.cls_token'] == RATE**2


def test_the_outermost_numbers_the_layers():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build_vit()

        def get_layer_depth(self, param_name, prefix=''):
            return 0, 2

    found = settings(model := Detector(Outer()), build(model))
    rates = {name: round(lr / LR, 6) for name, (lr, _, _) in found.items()}
    assert {rate for name, rate in rates.items() if name[:4] != 'head'} == {RATE}


def test_convolutions_that_are_not_depthwise_and_an_optimizer_with_its_own_decay():
    model = Detector(build_vit())
    found = settings(model, build(model, dwconv_decay_mult=0))
    assert found['backbone.patch_embed.proj.weight'][1] == DECAY
    found = settings(model, build(model, dict(type='AdamW', lr=LR)))
    assert {decay for _, decay, _ in found.values()} == {0.01}  # PyTorch's default


def test_a_model_without_numbered_layers_is_refused():
    with pytest.raises(ValueError, match='get_layer_depth'):
        build(nn.Linear(2, 2))
    with pytest.raises(ValueError, match='need an lr'):
        build(Detector(build_vit()), dict(type='Adadelta', weight_decay=0.1))
    with pytest.raises(ValueError, match="no parameter 'blocks"):
        build_vit().get_layer_depth('blocks.9.x')


def test_numbers_inside_dyt_and_derf_never_decay():
    """They are no part of DTN's group."""
    for name in ('DyT', 'Derf'):
        model = Detector(build_vit(norm_cfg=dict(type=f'mmlape.{name}')))
        found = settings(model, build(model, norm_decay_mult=1, flat_decay_mult=1, dtn_lr_mult=9))
        assert found['backbone.norm.weight'][1] == DECAY
        inner = {n for n in found if n.endswith(('.alpha', '.shift'))}
        assert len(inner) == (9 if name == 'DyT' else 18)
        assert all(found[n][1] == 0 and found[n][2].endswith(', no decay') for n in inner)
        assert found['backbone.norm.alpha'][0] == LR


RELEASED = {
    'pos_embed': 'position.embedding.pos_embed',
    'positions.weight': 'blocks.0.norm1.positions.weight',
    'relative_position_bias_table': 'blocks.1.attn.position.relative_position_bias_table',
    'dist_token': 'dist_token',
}


@pytest.mark.parametrize('key', RELEASED)
@pytest.mark.parametrize('ours', [True, False])
def test_what_released_code_decays(key, ours):
    """As docs/training.md says: over the custom keys of a schedule, by MMEngine's constructor and by ours."""
    model = build_vit(
        with_dist_token=True, norm_cfg=DTN, attention_position=dict(type='mmlape.RelativePositionBias')
    )  # fmt: skip
    kept = {'position': 0.0, 'cls_token': 0.0, 'dist_token': 0.0, 'norm': 0.0}
    keys = {name: dict(decay_mult=mult) for name, mult in {**kept, key: 1.0}.items()}
    if ours:
        found = settings(model, build(model, custom_keys=keys))
        decays = {name: decay for name, (_, decay, _) in found.items()}
    else:
        optimizer = dict(type='AdamW', lr=LR, weight_decay=DECAY)
        config = dict(optimizer=optimizer, paramwise_cfg=dict(custom_keys=keys))
        wrapper = build_optim_wrapper(model, dict(type='OptimWrapper', **config))
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = wrapper.optimizer.param_groups
        decays = {names[p]: group['weight_decay'] for group in groups for p in group['params']}
    assert {name: decays[name] for name in RELEASED.values()} == {
        name: DECAY if each == key else 0.0 for each, name in RELEASED.items()
    }
