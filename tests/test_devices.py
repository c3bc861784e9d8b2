"""Every component on a GPU that is not there: fake tensors say ``cuda``, so all that an operator gets must be there,
and reading a value on the host, for which a GPU is waited for, is an error.

The backward pass runs on a fake CPU instead, since autograd's engine needs a driver for GPUs. Not covered: its devices,
the kernels, and heads that wait for values by design (NMS, second stages, Mask2Former's masks).
"""

from contextlib import contextmanager

import pytest
import torch
from config_utils import CONFIGS
from mmengine.config import Config
from registered import BACKBONES, registered
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmlape.backbones import EoMT
from mmlape.position import AttentionPosition, Joining, PositionEmbedding
from mmlape.research.analysis import training_model

# Made on the host from the grid alone, and cached for the next pass.
MADE_ON_HOST = {
    'BigBirdAttention': 'random blocks, drawn by NumPy as published',
    'ViTAdapter': 'reference points',
}
# Other parts compute the same in a deployed network.
DEPLOYED = (AttentionPosition, EoMT, Joining, PositionEmbedding)
# Later stages repeat what is in the first ones.
EARLY = {
    **dict.fromkeys(
        (
            'ConvStem',
            'GaborPosition',
            'QuadraticBias',
            'RelativePositionBias',
            'SpatialReductionAttention',
        ),
        0,
    ),
    **dict.fromkeys(('PatchMerging', 'ShiftedWindowAttention'), 1),
}
# With necks: FPN or a simple pyramid, or none.
HEADS = [
    'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes',
    'demo/segformer_vit-micro-dinov3_sfp_digit-scenes',
    'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes',
    'demo/upernet_vit-micro-dinov3_sfp_digit-scenes',
    'experiments/eomt_vit-micro-lape_digit-scenes',
    'experiments/gfl_vit-micro-adapter-lape_fpn_digit-scenes',
]


class MadeOnHost(TorchDispatchMode):
    """Records the operators that return tensors with values on the CPU. MMCV's may read none there."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        assert 'on_gpu' not in str(func) or all(each.is_cuda for each in args)
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and not each.is_cuda and each.numel():
                self.names.append(str(func))
        return out


@contextmanager
def autocast(dtype):
    """As ``torch.autocast('cuda', dtype)``, which switches itself off without a GPU."""
    torch.set_autocast_dtype('cuda', dtype)
    torch.set_autocast_enabled('cuda', True)
    try:
        yield
    finally:
        torch.set_autocast_enabled('cuda', False)
        torch.clear_autocast_cache()


def to_fake(model, device='cuda'):
    """New parameters and buffers of the same kinds, on the fake device."""
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                there = torch.empty(value.shape, dtype=value.dtype, device=device)
                module._parameters[name] = nn.Parameter(there, value.requires_grad)
        for name, value in list(module._buffers.items()):
            if value is not None:
                there = torch.empty(value.shape, dtype=value.dtype, device=device)
                module._buffers[name] = there


@pytest.mark.filterwarnings('ignore:User provided device_type')
@pytest.mark.parametrize('name', BACKBONES)
@torch.no_grad()
def test_all_of_a_pass_is_on_the_gpu_and_nothing_waits_for_it(name):
    early = dict(out_indices=EARLY[name]) if name in EARLY else {}
    model = BACKBONES[name](**early).eval()
    model(torch.rand(1, 3, 32, 48))  # what this caches is on the CPU
    with FakeTensorMode():
        to_fake(model)
        images = torch.empty(2, 3, 32, 48, device='cuda'), torch.empty(1, 3, 41, 32, device='cuda')
        model.train()
        with autocast(torch.float16), MadeOnHost() as made:
            found = tree_leaves(model(images[0]))
        if issubclass(registered()[name], DEPLOYED):
            model.eval().switch_to_deploy()
            with autocast(torch.bfloat16), made:
                found += tree_leaves(model(images[1]))
    assert all(each.is_cuda for each in found)
    made_on_host = set(made.names)
    assert bool(made_on_host) == (name in MADE_ON_HOST), made_on_host


@pytest.mark.filterwarnings('ignore:User provided device_type')
@pytest.mark.parametrize('name', HEADS)
@torch.no_grad()
def test_heads_are_on_the_gpu_and_nothing_waits_for_them(name):
    model = training_model(Config.fromfile(CONFIGS / f'{name}.py'))
    model(torch.rand(1, 3, 64, 96), mode='tensor')  # what this caches is on the CPU
    with FakeTensorMode():
        to_fake(model)
        images = torch.empty(2, 3, 64, 96, device='cuda')
        with autocast(torch.float16), MadeOnHost() as made:
            found = tree_leaves(model(images, mode='tensor'))
    assert found and all(each.is_cuda for each in found)
    assert bool(made.names) == ('adapter' in name), made.names


@pytest.mark.slow
@pytest.mark.parametrize('name', BACKBONES)
def test_nothing_waits_in_a_backward_pass(name, monkeypatch):
    for module in (
        'layers.mlp',
        'norm.dtn_plain',
    ):  # recompute as without a mode
        monkeypatch.setattr(f'mmlape.{module}.is_eager', lambda *_tensors: True)
    model = BACKBONES[name]().train()
    with FakeTensorMode(), torch.autocast('cpu', torch.bfloat16):
        to_fake(model, 'cpu')
        outputs = tree_leaves(model(torch.empty(2, 3, 32, 48)))
        sum(each.float().square().mean() for each in outputs).backward()
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
