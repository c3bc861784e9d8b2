"""Muon for the linear layers of blocks, AdamW for the rest: the configs of docs/training.md."""

import pytest
import torch
from backbone_variants import build_vit
from config_utils import CONFIGS
from docs_pages import REPO, python_fences
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from torch import nn

RECIPES = [
    fence.code
    for fence in python_fences(REPO / 'docs' / 'training.md')
    if 'timm.optim.Muon' in fence.code
]
MATRICES = ('attn.qkv.weight', 'attn.proj.weight', 'mlp.fc1.weight', 'mlp.fc2.weight')
LAYERS = 'mmlape.LayerDecayOptimizerConstructor'
DEFAULT = 'DefaultOptimWrapperConstructor'


class Classifier(nn.Module):
    """With all that Muon must leave alone."""

    def __init__(self, **options):
        super().__init__()
        self.backbone = build_vit(
            joining=dict(type='mmlape.LaPE'),
            norm_cfg=dict(type='mmlape.DTN', num_heads=12, layers=1),
            arch=dict(embed_dims=24, depth=2, num_heads=12),
            **{'attention_position': dict(type='mmlape.RelativePositionBias'), **options},
        )
        self.neck = nn.Conv2d(24, 24, 1)
        self.head = nn.ModuleDict({'layers': nn.ModuleDict({'head': nn.Linear(24, 5)})})

    def forward(self, images):
        return self.head.layers.head(self.neck(self.backbone(images)[-1]).mean((2, 3)))


def recipe(number, constructor, folder):
    """As a training reads it, and as it writes it into its work dir."""
    (folder / 'page.py').write_text(RECIPES[number])
    Config.fromfile(folder / 'page.py').dump(folder / 'dumped.py')
    config = Config.fromfile(folder / 'dumped.py').optim_wrapper
    config.constructor = constructor or config.constructor
    return config


def train(model, wrapper, steps):
    losses = []
    for step in steps:
        images = torch.randn(4, 3, 32, 48, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2, 3]))
        wrapper.update_params(loss)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ('number', 'constructor', 'groups'), [(0, None, None), (1, None, 3), (1, DEFAULT, None)]
)
def test_muon_gets_the_matrices_of_blocks_and_adamw_the_rest(number, constructor, groups, tmp_path):
    config, model = recipe(number, constructor, tmp_path), Classifier()
    again = Classifier()
    wrapper = build_optim_wrapper(model, config)
    assert groups is None or len(wrapper.optimizer.param_groups) == groups
    assert torch.tensor(train(model, wrapper, range(3))).isfinite().all()
    names = {parameter: name for name, parameter in model.named_parameters()}
    state = {names[parameter]: values for parameter, values in wrapper.optimizer.state.items()}
    muon = {name for name, values in state.items() if 'momentum_buffer' in values}
    adamw = {name for name, values in state.items() if 'exp_avg_sq' in values}
    assert muon == {f'backbone.blocks.{i}.{name}' for i in (0, 1) for name in MATRICES}
    assert adamw == set(names.values()) - muon
    assert {'backbone.patch_embed.proj.weight', 'head.layers.head.weight', 'neck.weight'} <= adamw
    assert sum('relative_position_bias_table' in name for name in adamw) == 2
    assert sum('.positions.' in name for name in adamw) == 2  # of DTN
    assert sum('.joining.' in name for name in adamw) == 4  # of LaPE
    decays = {
        names[parameter]
        for group in wrapper.optimizer.param_groups
        if group['weight_decay']
        for parameter in group['params']
    }
    spared = set() if number else {'neck.weight'}  # the second recipe names what decays
    assert decays == muon | {'backbone.patch_embed.proj.weight', 'head.layers.head.weight'} | spared

    other = build_optim_wrapper(again, config)
    again.load_state_dict(model.state_dict())
    torch.save(wrapper.state_dict(), tmp_path / 'state.pth')
    other.load_state_dict(torch.load(tmp_path / 'state.pth', weights_only=True))
    assert train(again, other, (3, 4)) == train(model, wrapper, (3, 4))
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize('number', [0, 1])
def test_names_are_those_of_our_classifiers(number, tmp_path):
    """In a config that inherits from one of ours."""
    base = CONFIGS / 'imagenet' / 'deit-t-lape_8xb128_in1k.py'
    code = RECIPES[number].replace("type='OptimWrapper'", "type='OptimWrapper', _delete_=True")
    (tmp_path / 'config.py').write_text(f'_base_ = {str(base)!r}\n{code}')
    config = Config.fromfile(tmp_path / 'config.py')
    with MODELS.switch_scope_and_registry('mmpretrain') as registry, torch.device('meta'):
        model = registry.build(config.model)
    names = [name for name, _ in model.named_parameters()]
    for key in config.optim_wrapper.paramwise_cfg.custom_keys:
        assert any(key in name for name in names), key
    groups = build_optim_wrapper(model, config.optim_wrapper).optimizer.param_groups
    assert sum(len(group['params']) for group in groups if group['use_muon']) == 12 * len(MATRICES)


def test_layer_wise_rates_with_muon(tmp_path):
    config, model = recipe(0, None, tmp_path), Classifier()
    config.paramwise_cfg.decay_rate = 0.5
    wrapper = build_optim_wrapper(model, config)
    rates = {
        name: group['lr']
        for group in wrapper.optimizer.param_groups
        for name, parameter in model.named_parameters()
        if any(parameter is each for each in group['params'])
    }
    named = {group['group_name'] for group in wrapper.optimizer.param_groups if group['use_muon']}
    assert named == {'layer 1, Muon', 'layer 2, Muon'}
    assert rates['head.layers.head.weight'] == 1e-3
    assert [rates[f'backbone.blocks.{i}.mlp.fc1.weight'] for i in (0, 1)] == [2.5e-4, 5e-4]
    assert torch.tensor(train(model, wrapper, range(3))).isfinite().all()


@pytest.mark.parametrize(
    ('keys', 'optimizer', 'error', 'words'),
    [
        ({'patch_embed.proj.weight': True}, None, ValueError, "linear layers .*got 'backbone.patch_embed.proj.weight'"),
        ({'relative_position_bias_table': True}, None, ValueError, 'got .*blocks.0.attn.position.relative_position'),
        ({'positions.weight': True}, None, ValueError, 'outside of positions and norms, got .*norm1.positions.weight'),
        ({'attn.qkv': True}, None, ValueError, "got 'backbone.blocks.0.attn.qkv.bias'"),
        ({'attn.qkv.weight': 1}, None, TypeError, r"\['attn.qkv.weight'\] use_muon must be True or False, got 1"),
        ({'attn.qkv.weight': True}, 'AdamW', ValueError, "e.g. type='timm.optim.Muon', got 'AdamW', one of"),
        ({'attn.qkv.weight': True}, 'timm.optim.Moun', ValueError, "got 'timm.optim.Moun', which is unknown"),
        ({'attn.qkv.weight': True}, torch.optim.Muon, ValueError, 'one of PyTorch'),
    ],
)  # fmt: skip
def test_mistakes_are_named(keys, optimizer, error, words):
    config = dict(
        type='OptimWrapper',
        optimizer=dict(type=optimizer or 'timm.optim.Muon', lr=1e-3, weight_decay=0.05),
        constructor=LAYERS,
        paramwise_cfg=dict(
            decay_rate=1.0, custom_keys={key: dict(use_muon=value) for key, value in keys.items()}
        ),
    )
    with pytest.raises(error, match=words):
        build_optim_wrapper(Classifier(), config)
