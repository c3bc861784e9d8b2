"""One group per setting: the same training as with a group per tensor, in fewer calls."""

import copy

import pytest
import torch
from config_utils import CONFIGS
from mmengine.config import Config
from mmengine.optim import CosineAnnealingLR, build_optim_wrapper
from mmengine.registry import MODELS
from torch import nn
from torch.profiler import ProfilerActivity, profile

PARAMWISE = dict(
    norm_decay_mult=0.0, bias_decay_mult=0.0, custom_keys={'2': dict(lr_mult=10.0, decay_mult=0.5)}
)
OURS = 'mmlape.MergedGroupsOptimizerConstructor'


def network():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2))
    made[0].bias.requires_grad_(False)
    return made


def build(model, constructor=OURS, paramwise=PARAMWISE, **optimizer):
    return build_optim_wrapper(
        model,
        dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-2, weight_decay=0.1, **optimizer),
            constructor=constructor,
            paramwise_cfg=paramwise,
        ),
    )


def train(model, wrapper, steps=5):
    scheduler = CosineAnnealingLR(wrapper.optimizer, T_max=6, by_epoch=False)
    for step in range(steps):
        noise = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        wrapper.update_params(model(noise).square().mean())
        scheduler.step()


def test_each_trained_tensor_is_in_the_group_of_its_settings():
    model = network()
    groups = build(model).optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [
        ([names[id(p)] for p in group['params']], group['lr'], group['weight_decay'])
        for group in groups
    ] == [
        (['0.weight', '3.weight'], 0.01, 0.1),
        (['1.weight', '1.bias', '3.bias'], 0.01, 0.0),
        (['2.weight', '2.bias'], 0.1, 0.05),
    ]


@pytest.mark.parametrize('foreach', [False, True])
def test_the_training_is_the_same(foreach):
    ours = network()
    theirs = copy.deepcopy(ours)
    train(ours, build(ours, foreach=foreach))
    train(theirs, build(theirs, 'DefaultOptimWrapperConstructor', foreach=foreach))
    assert not torch.equal(ours[2].weight, network()[2].weight)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name


@pytest.mark.parametrize('constructor', [OURS, 'DefaultOptimWrapperConstructor'])
def test_a_tensor_with_two_names_is_refused(constructor):
    model = network()
    model[3].weight = nn.Parameter(torch.ones(4, 4))
    model[2].weight = model[3].weight
    with pytest.raises(ValueError, match='more than one parameter group'):
        build(model, constructor, dict(norm_decay_mult=0.0))


def test_the_demo_steps_in_a_few_calls():
    cfg = Config.fromfile(CONFIGS / 'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes.py')
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = registry.build(cfg.model)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    assert sum(len(group['params']) for group in wrapper.optimizer.param_groups) > 300
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with profile(activities=[ProfilerActivity.CPU]) as counted:
        wrapper.optimizer.step()
    calls = {event.key: event.count for event in counted.key_averages()}
    assert calls['aten::_fused_adamw_'] == 3 == len(wrapper.optimizer.param_groups)
