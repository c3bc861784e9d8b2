"""Position alone is trained: it moves, and nothing else does, to the bit."""

import copy

import pytest
import torch
from backbone_variants import build_adapter, build_levit, build_pvt, build_swin, build_vit
from mmengine.model import BaseModel
from registered import BACKBONES
from tiny_training import short_runner
from torch import nn

from mmlape.backbones import freeze_all_but_position
from mmlape.backbones.position_only import hold_statistics, statistics_of
from mmlape.research.pretraining import Classifier
from mmlape.training import PositionOnlyHook

GABOR = dict(type='mmlape.GaborAttention', parts=[2, 3])
NOTHING = dict(type='mmlape.NoPosition')
# How to build a backbone, and in what the names of all that is trained begin.
TRAINED = {
    'lape': (
        lambda: build_vit(drop_path_rate=0.3, joining=dict(type='mmlape.LaPE')),
        ('position.',),
    ),
    'inside': (
        lambda: build_vit(position=NOTHING, attention_position=GABOR, with_cp=True),
        tuple(f'blocks.{layer}.attn.position.' for layer in range(4)),
    ),
    'batch norm': (BACKBONES['TokenBN'], ('position.',)),
    'switchable norm': (BACKBONES['SwitchableNorm'], ('position.',)),
    'power norm': (BACKBONES['PowerNorm'], ('position.',)),
    'pvt': (lambda: build_pvt(joining=dict(type='mmlape.LaPE')), ('position',)),
    'swin': (build_swin, ('block',)),
    'levit': (build_levit, ('block', 'patch_embed')),
    'adapter': (build_adapter, ('vit.position.',)),
}


class Around(BaseModel):
    """A backbone, and what a detector has besides: statistics and weights of its own."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.norm = nn.LazyBatchNorm2d()
        self.head = nn.LazyConv2d(3, 1)
        self(torch.zeros(2, 3, 64, 64))

    def forward(self, image, mode='tensor'):
        return self.head(self.norm(self.backbone(image)[-1])).square().mean()

    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            loss = self(torch.stack(list(data)))
        optim_wrapper.update_params(loss)
        return dict(loss=loss.detach())


def runner_of(folder, model, hooks=(), iterations=2, **options):
    data = [torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    hooks = [dict(type='mmlape.PositionOnlyHook'), *hooks]
    adamw = dict(type='AdamW', lr=1e-2, weight_decay=0.1)
    return short_runner(folder, model, data, hooks, iterations, adamw, **options)


def moved(before, model):
    state = model.state_dict()
    assert state.keys() == before.keys()
    return [name for name, value in state.items() if not torch.equal(value, before[name])]


@pytest.mark.parametrize('name', TRAINED)
def test_only_position_moves(name, tmp_path):
    """Parameters and buffers; every tensor of position has moved."""
    build, starts = TRAINED[name]
    torch.manual_seed(0)
    model = Around(build())
    with torch.no_grad():  # norms that start at zero let nothing through
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
    before = copy.deepcopy(model.state_dict())
    runner_of(tmp_path / 'run', model).train()
    trained = [n for n, p in model.named_parameters() if p.requires_grad and p.numel()]
    assert trained and all(n.startswith(tuple(f'backbone.{s}' for s in starts)) for n in trained)
    # A state dict may have a name of its own for a parameter; values are the same.
    renamed = {id(v): n for n, v in model.state_dict(keep_vars=True).items()}
    assert set(moved(before, model)) == {renamed[id(model.get_parameter(n))] for n in trained}


def test_dropout_and_drop_path_stay_on(tmp_path):
    """They are of the recipe; only what keeps statistics is in evaluation mode, after a ``train()`` too."""
    model = Around(
        build_vit(drop_path_rate=0.3, drop_rate=0.2, norm_cfg=dict(type='mmlape.TokenBN'))
    )
    runner_of(tmp_path / 'run', model).train()
    kept = {type(part).__name__ for part in model.modules() if not part.training}
    assert kept == {'TokenBN', 'BatchNorm2d'}
    assert model.backbone.blocks[3].training and model.backbone.drop_after_position.training


def test_averages_and_resuming(tmp_path):
    ema = dict(type='EMAHook', momentum=0.5)
    model = Around(build_vit())
    before = copy.deepcopy(model.state_dict())
    runner_of(tmp_path / 'run', model, [ema], iterations=1).train()
    again = Around(build_vit())
    runner_of(tmp_path / 'run', again, [ema], iterations=3, resume=True).train()
    assert moved(before, again) == ['backbone.pos_embed']
    state = torch.load(tmp_path / 'run' / 'iter_3.pth', weights_only=False)
    for kind in ('state_dict', 'ema_state_dict'):
        values = {k.removeprefix('module.'): v for k, v in state[kind].items() if k != 'steps'}
        other = [k for k in before if not torch.equal(values[k], before[k])]
        assert other == ['backbone.pos_embed'], kind


def test_tests_are_left_alone(tmp_path):
    model, runner = Around(build_vit()), None
    hook = PositionOnlyHook()
    runner = runner_of(tmp_path / 'run', model)
    runner._train_loop = dict(
        type='IterBasedTrainLoop', max_iters=1
    )  # as it is until a training begins
    hook.before_run(runner)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ('model', 'text'),
    [
        (lambda: nn.Linear(2, 2), 'in a Linear: it has no backbone of mmlape'),
        (
            lambda: nn.Sequential(build_vit(position=NOTHING)),
            'in a Sequential: no position of its VisionTransformer has parameters',
        ),
        (
            lambda: build_vit(position=dict(type='mmlape.SinusoidalPosition', axes=2)),
            'no position of its VisionTransformer has parameters',
        ),
        (
            lambda: build_vit(frozen_stages=0),
            r'position\.embedding\.pos_embed is frozen already; frozen_stages must be -1',
        ),
        (
            lambda: build_pvt(frozen_stages=1, joining=dict(type='mmlape.LaPE')),
            r'position1\.\S+ and 2 more is frozen already',
        ),
    ],
)
def test_what_has_no_position_is_refused(model, text):
    with pytest.raises(ValueError, match=text):
        freeze_all_but_position(model())


def test_classifiers_of_timm():
    """``--model-kwargs position_only=True``: heads are frozen, a new one too, and statistics hold."""
    options = dict(arch=dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2), img_size=64)
    options.update(norm_cfg=dict(type='mmlape.TokenBN'), num_classes=5, position_only=True)
    model = Classifier('mmlape.VisionTransformer', **options)
    model.reset_classifier(4)
    before = copy.deepcopy(model.state_dict())
    model.train()
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=0.1)
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    optimizer.step()
    assert moved(before, model) == ['backbone.pos_embed']
    assert model.training and not statistics_of(model)[0].training
    plain = Classifier('mmlape.VisionTransformer', **dict(options, position_only=False))
    assert all(parameter.requires_grad for parameter in plain.parameters())
    assert all(module.training for module in plain.train().modules())
    hold_statistics([])
