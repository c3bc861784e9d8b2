"""One place for each addition: a class of each kind, in a package of its own, works through a config alone."""

import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import load_checkpoint
from mmseg.registry import MODELS as MMSEG_MODELS
from mmseg.utils import register_all_modules
from registered import in_a_network

from mmlape import registry

PACKAGE = {
    '__init__': 'from . import attention, backbone, head, joining, neck, norm, position',
    'position': """
import torch
from torch import nn
from mmlape.position import PositionEmbedding
from mmlape.registry import MODELS

@MODELS.register_module()
class StripePosition(PositionEmbedding):
    def __init__(self, embed_dims, grid, num_prefix_tokens=0, num_tables=1):
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        self.slope = nn.Parameter(torch.randn(num_tables, 1, embed_dims))
        self.prefix = nn.Parameter(torch.zeros(num_tables, num_prefix_tokens, embed_dims))

    def forward(self, grid):
        rows = torch.linspace(-1, 1, grid[0]).repeat_interleave(grid[1])
        return torch.cat([self.prefix, rows[:, None] * self.slope], dim=1)
""",
    'joining': """
from mmlape.position import Joining, PositionPlan
from mmlape.registry import MODELS

@MODELS.register_module()
class LastJoining(Joining):
    def forward(self, embedding):
        nothing = (None,) * self.depth
        return PositionPlan(None, (*nothing[1:], embedding), nothing)
""",
    'norm': """
from mmlape.norm import TokenNorm
from mmlape.registry import MODELS

@MODELS.register_module()
class LargestNorm(TokenNorm):
    def __init__(self, num_features, eps=1e-6):
        super().__init__(num_features, eps)

    def standardise(self, x):
        return x / (x.abs().amax(dim=-1, keepdim=True) + self.eps)
""",
    'attention': """
from torch import nn
from mmlape.layers import AttentionLayer
from mmlape.registry import MODELS

@MODELS.register_module()
class MeanAttention(AttentionLayer):
    def __init__(self, embed_dims, num_heads, attn_drop_rate=0.0, proj_drop_rate=0.0):
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, tokens, layout, plan=None):
        return self.project(tokens.mean(dim=1, keepdim=True).expand_as(tokens))
""",
    'backbone': """
from mmlape.backbones import StagedTransformer
from mmlape.backbones.timm_rows import TimmRow
from mmlape.registry import MODELS

@MODELS.register_module()
class OneStage(StagedTransformer):
    archs = {'toy': dict(embed_dims=[16], depths=[2], num_heads=[2], mlp_ratios=[2])}
    default_arch = 'toy'
    outputs = (0,)
    timm_rows = (TimmRow('one_stage_{}', '{}', 'toy'),)
    timm_cfg = dict(first_conv='backbone.patch_embed1.proj')

    def __init__(self, arch=None, img_size=None, **common):
        super().__init__(arch, img_size, **common)

    @classmethod
    def stage_sizes(cls, arch):
        (dims,), (depth,), (heads,), (ratio,) = (arch[key] for key in cls.sizes)
        stem = dict(type='mmlape.PatchEmbed', patch_size=8)
        return [dict(embed_dims=dims, depth=depth, num_heads=heads, mlp=dict(ratio=ratio), stem=stem)]
""",
    'neck': """
from mmengine.model import BaseModule
from torch import nn
from mmlape.registry import MODELS

@MODELS.register_module()
class Projection(BaseModule):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.layer = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, maps):
        return tuple(map(self.layer, maps))
""",
    'head': """
from mmseg.models.decode_heads import FCNHead
from mmlape.registry import MODELS

@MODELS.register_module()
class NegatedHead(FCNHead):
    def forward(self, maps):
        return -super().forward(maps)
""",
}
CONFIG = """
custom_imports = dict(imports=['own_parts'], allow_failed_imports=False)
model = dict(
    type='EncoderDecoder',
    backbone=dict(
        type='mmlape.OneStage',
        img_size=32,
        position=dict(type='mmlape.StripePosition'),
        joining=dict(type='mmlape.LastJoining'),
        norm_cfg=dict(type='mmlape.LargestNorm'),
        attention=dict(type='mmlape.MeanAttention')),
    neck=dict(type='mmlape.Projection', in_channels=16, out_channels=12),
    decode_head=dict(
        type='mmlape.NegatedHead', in_channels=12, channels=8, num_convs=1, num_classes=3,
        norm_cfg=dict(type='BN'), concat_input=False),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
"""
KINDS = ('StripePosition', 'LastJoining', 'LargestNorm', 'MeanAttention')
CLASSES = {*KINDS, 'OneStage', 'Projection', 'NegatedHead'}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The config, with the package on the path; what is registered in it is forgotten afterwards."""
    ours = registry.MODELS
    monkeypatch.setattr(ours, '_module_dict', dict(ours.module_dict))
    (tmp_path / 'own_parts').mkdir()
    for name, code in PACKAGE.items():
        monkeypatch.delitem(sys.modules, f'own_parts.{name}', raising=False)
        (tmp_path / 'own_parts' / f'{name}.py').write_text(code)
    monkeypatch.delitem(sys.modules, 'own_parts', raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'config.py').write_text(CONFIG)
    register_all_modules()
    return Config.fromfile(tmp_path / 'config.py')


def test_each_kind_is_built_run_saved_and_loaded(config, tmp_path):
    torch.manual_seed(0)
    model, again = (MMSEG_MODELS.build(config.model).eval() for _ in range(2))
    assert {type(module).__name__ for module in model.modules()} >= CLASSES
    image = torch.randn(2, 3, 33, 50)
    logits = model(image)
    assert logits.shape == (2, 3, 5, 7) and not logits.equal(again(image))
    logits.square().mean().backward()
    without = [n for n, p in model.backbone.named_parameters() if p.numel() and p.grad is None]
    assert without == []
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'saved.pth')
    load_checkpoint(again, str(tmp_path / 'saved.pth'), strict=True)
    torch.testing.assert_close(again(image), logits, rtol=0, atol=0)


@pytest.mark.parametrize('name', KINDS)
def test_tests_of_registered_classes_find_it(name, config):
    """Without a line in tests/helpers/registered.py, a micro ViT contains it."""
    made = registry.MODELS.get(f'mmlape.{name}')
    model = in_a_network(name, made)()
    assert any(type(module) is made for module in model.modules())


def test_timm_is_told_of_a_family(config):
    from mmlape.timm_models import rows_of_families

    found = {name: (options, own) for name, options, own in rows_of_families()}
    assert found['one_stage_toy'] == (
        dict(network='mmlape.OneStage', arch='toy'),
        dict(first_conv='backbone.patch_embed1.proj'),
    )
