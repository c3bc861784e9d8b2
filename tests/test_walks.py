"""A pass and a construction are short: few Python calls of ours; and stages that are made once are never stale."""

import copy
import sys

import pytest
import torch
from backbone_variants import build_vit
from torch import nn

from benchmarks.stops import PARTS, stops
from benchmarks.walks import NETWORKS, of_construction, of_pass
from mmlape.norm import LN


@pytest.mark.parametrize(
    ('name', 'calls', 'files'), [('LaPE ViT-Ti', 290, 12), ('PVT-Ti DTN', 521, 16)]
)
def test_calls_and_files_of_a_pass(name, calls, files):
    found = of_pass(NETWORKS[name])
    assert found['calls'] <= calls and found['files'] <= files, found


@pytest.mark.parametrize('options', [{}, dict(joining=dict(type='mmlape.LaPE'))])
def test_calls_of_building_a_vit(options):
    found = of_construction(dict(options, type='mmlape.VisionTransformer', arch='deit-tiny'))
    assert 300 < found['calls'] < 1000, found


@pytest.mark.parametrize('option', PARTS)
def test_stops_of_an_option(option):
    found = stops(option)
    assert 'backbones/vit.py: VisionTransformer.__init__' in found or sys.version_info < (3, 11)
    assert 3 <= len(found) <= 5, found


def stages_of(model):
    """The stages that a pass uses."""
    model(torch.zeros(1, 3, 32, 32))
    return model.stages()


def test_stages_are_made_once():
    model = build_vit()
    assert stages_of(model) is stages_of(model)


def another_norm(model):
    model.norm_pre = LN(24)


def other_blocks(model):
    model.blocks = nn.ModuleList(list(model.blocks)[::-1])


def another_token(model):
    model.cls_token = nn.Parameter(torch.ones_like(model.cls_token))


def recomputed(model):
    model.with_cp = True


def compiled(model):
    model.compile_blocks = dict(backend='eager')


CHANGES = [another_norm, other_blocks, another_token, recomputed, compiled]


@pytest.mark.parametrize('change', CHANGES)
def test_what_is_replaced_is_seen(change):
    model = build_vit(with_cls_token=True)
    before = stages_of(model)
    change(model)
    stages = stages_of(model)
    (stage,) = stages
    assert stages is not before and stage.first_norm is model.norm_pre
    assert stage.blocks is model.blocks and stage.prefix == (model.cls_token,)
    assert (stage.with_cp, stage.compile_blocks) == (model.with_cp, model.compile_blocks)


def test_a_copy_has_stages_of_its_own():
    model = build_vit(with_cls_token=True)
    stages_of(model)
    other = copy.deepcopy(model)
    (stage,) = other.stages()
    assert stage.blocks is other.blocks and stage.prefix[0] is other.cls_token


def test_parameters_of_a_call_are_not_kept():
    """A copy of tensors with a graph, or of a transform, would fail."""
    model = build_vit(with_cls_token=True)
    others = {name: 2 * value for name, value in model.named_parameters()}
    torch.func.functional_call(model, others, (torch.zeros(1, 3, 32, 32),))
    assert copy.deepcopy(model).stages()[0].prefix[0].is_leaf
    assert model.stages()[0].prefix[0] is model.cls_token
