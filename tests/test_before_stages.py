"""What the code computed before networks were made of stages (tests/data/before_stages) is what it computes."""

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from backbone_variants import VARIANTS, build_adapter, build_pvt, build_vit
from mmengine.runner import load_checkpoint
from torch import nn
from torch.utils._pytree import tree_leaves

from mmlape.checkpoints import convert

FOLDER = Path(__file__).parent / 'data' / 'before_stages'
RECORD = json.loads(gzip.decompress((FOLDER / 'record.json.gz').read_bytes()))
LAPE = dict(type='mmlape.LaPE')
MORE = {
    'vit-distilled-lape-avg': lambda: build_vit(
        with_dist_token=True, joining=LAPE, out_type='cls_and_dist'
    ),
    'vit-avg-sin2d-shared': lambda: build_vit(
        position=dict(type='mmlape.SinusoidalPosition', axes=2),
        joining=dict(type='mmlape.SharedJoining'),
        out_type='avg',
        with_cls_token=False,
    ),
    'vit-gabor-position': lambda: build_vit(position=dict(type='mmlape.GaborPosition')),
    'vit-relative-lape-norm': lambda: build_vit(
        position=dict(type='mmlape.NoPosition'),
        attention_position=dict(type='mmlape.RelativePositionBias', layer_norm=True),
    ),
    'pvt-classifier': lambda: build_pvt(with_cls_token=True, out_type='cls_token', out_indices=3),
    'pvtv2-avg': lambda: build_pvt('V2', out_type='avg', out_indices=3),
    'vit-norms': lambda: build_vit(norm_cfg=dict(type='mmlape.TokenIN')),
}
FILES = {
    'vit-unshared': lambda: build_vit(
        joining=dict(type='mmlape.UnsharedJoining'), with_dist_token=True
    ),
    'adapter-lape': lambda: build_adapter(dict(joining=LAPE)),
    'pvt-dtn-lape': lambda: build_pvt(
        norm_cfg=dict(type='mmlape.DTN'), num_heads=[4, 4, 5, 8], joining=LAPE, with_cls_token=True
    ),
}
# What changed on purpose; the names of parameters did not.
CHANGED = {'adapter-patch-14': 'the adapter pads less where patches are no divisors of 32'}


def values(name, shape):
    """Numbers that follow from a name."""
    numbers = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy(numbers.astype('float32') * 0.1)


def filled(model):
    """All values follow from their names; variances are positive."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            tensor.data.copy_(values(name, tuple(tensor.shape)))
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.data.abs_().add_(0.5)
    return model.eval()


@pytest.fixture(scope='module')
def recorded_outputs():
    with np.load(FOLDER / 'outputs.npz') as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


@pytest.mark.parametrize('name', RECORD)
def test_as_before(name, recorded_outputs):
    """Names, shapes, orders (states of optimizers go by index), outputs and gradients."""
    before, model = RECORD[name], filled({**VARIANTS, **MORE}[name]())
    state = model.state_dict(keep_vars=True)
    assert [(k, list(v.shape)) for k, v in state.items()] == list(
        map(tuple, before['state'].items())
    )
    assert [k for k, _ in model.named_parameters()] == before['parameters']
    outputs = tree_leaves(model(values('image', (2, 3, 72, 40)) * 10))
    assert [list(output.shape) for output in outputs] == before['outputs']
    same = [
        torch.allclose(thinned(output), recorded_outputs[f'{name}/{i}'], rtol=1e-5, atol=1e-5)
        for i, output in enumerate(outputs)
    ]
    assert all(same) != (name in CHANGED), CHANGED.get(name)
    if name not in CHANGED:
        sum(output.square().mean() for output in outputs).backward()
        torch.testing.assert_close(gradients(state), before['gradients'], rtol=1e-4, atol=1e-7)


def thinned(output):
    flat = output.detach().flatten()
    return flat[:: max(len(flat) // 200, 1)]


def gradients(state):
    parameters = {k: v for k, v in state.items() if isinstance(v, nn.Parameter)}
    return {k: None if v.grad is None else v.grad.norm().item() for k, v in parameters.items()}


def test_nothing_that_was_recorded_is_gone():
    """Variants that were added since have nothing to be compared with."""
    assert {*CHANGED, *MORE} <= RECORD.keys() <= {*VARIANTS, *MORE}


@pytest.mark.parametrize('name', FILES)
def test_checkpoints_of_then_load(name):
    """Through the converter, and through MMEngine's own loading; every value is the one that was saved."""
    path, checked = FOLDER / f'{name}.pth', 0
    checkpoint = torch.load(path, weights_only=True)
    saved, converted, model = checkpoint['state_dict'], FILES[name](), FILES[name]()
    converted.load_state_dict(convert(checkpoint, 'mmlape', converted, min_matched=1))
    load_checkpoint(model, str(path), strict=True, revise_keys=[(r'^backbone\.', '')])
    assert [f'backbone.{name}' for name in model.state_dict()] == list(saved)
    for key, value in model.state_dict().items():
        assert torch.equal(value, saved[f'backbone.{key}'].to(value.dtype))
        assert torch.equal(value, converted.state_dict()[key])
        if value.is_floating_point() and not key.endswith('running_var'):
            assert torch.equal(value, values(key, tuple(value.shape)).half().float())
            checked += 1
    assert checked > 50
