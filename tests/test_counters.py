"""What a forward pass of each family does, by counters that no other process can change: operators, bytes, waits."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.side_by_side import saved_bytes
from mmlape.registry import MODELS

VIT = dict(arch=dict(embed_dims=24, depth=4, num_heads=3, mlp_ratio=4), img_size=64, patch_size=16)
PYRAMID = dict(
    embed_dims=[16, 32, 48, 64],
    depths=[1, 1, 1, 1],
    num_heads=[1, 2, 3, 4],
    mlp_ratios=[8, 8, 4, 4],
)
NETWORKS = {
    'vit': dict(type='mmlape.VisionTransformer', **VIT),
    'pvt': dict(type='mmlape.PyramidVisionTransformer', arch=dict(PYRAMID, sr_ratios=[8, 4, 2, 1])),
    'pvtv2': dict(
        type='mmlape.PyramidVisionTransformerV2', arch=dict(PYRAMID, sr_ratios=[8, 4, 2, 1])
    ),
    'swin': dict(
        type='mmlape.SwinTransformer',
        arch=dict(embed_dims=24, depths=[2, 2, 2, 2], num_heads=[1, 2, 3, 4], window_size=4),
    ),
    'adapter': dict(
        type='mmlape.ViTAdapter',
        vit=dict(VIT, with_cls_token=False, final_norm=False, layer_scale=True),
        deform_num_heads=3,
        interaction_indexes=[[0, 0], [1, 1], [2, 2], [3, 3]],
        vit_feature='per_stage',
    ),
}
IMAGE = (1, 3, 128, 128)


class Operators(TorchDispatchMode):
    """Counts operators by name, without overload."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope='module')
def networks():
    return {name: MODELS.build(dict(config)).train() for name, config in NETWORKS.items()}


def operators(network):
    image = torch.zeros(IMAGE)
    with torch.no_grad():
        network(image)  # what depends on the grid alone is kept
        with Operators() as seen:
            network(image)
    return seen.counts


# Of one pass without gradients: all operators at most, copies among them at most, and attention kernels.
PASSES = {
    'vit': (163, 1, 4),
    'pvt': (291, 10, 4),
    'pvtv2': (283, 10, 4),
    'swin': (650, 35, 8),
    # the image with channels last, ten of MMCV's sampling, and the crop of each map
    'adapter': (1013, 15, 4),
}
COPIES = ('clone', 'copy', 'copy_', '_to_copy', 'constant_pad_nd')
KERNEL = '_scaled_dot_product_flash_attention_for_cpu'
# What one pass of it keeps for the backward pass, parameters included, at most.
SAVED = {'vit': 697e3, 'pvt': 2813e3, 'pvtv2': 3931e3, 'swin': 10875e3, 'adapter': 15970e3}


@pytest.mark.parametrize('name', NETWORKS)
def test_operators(networks, name):
    counts = operators(networks[name])
    most, copies, attention = PASSES[name]
    assert sum(counts.values()) <= most, counts
    assert sum(counts[copy] for copy in COPIES) <= copies, counts
    assert counts[KERNEL] == attention
    # A number that Python reads from a tensor makes a GPU finish all that went before.
    assert not counts['_local_scalar_dense'] and not counts['nonzero']


@pytest.mark.parametrize('name', NETWORKS)
def test_saved_bytes(networks, name):
    assert saved_bytes(lambda: networks[name](torch.zeros(IMAGE))) <= SAVED[name]


def test_attention_with_a_learned_bias_makes_its_map_in_few_passes(networks):
    """Two products and a softmax for each layer, and none of the passes in which PyTorch looks for empty rows."""
    with Operators() as seen:
        networks['swin'](torch.zeros(IMAGE))
    assert (seen.counts['bmm'], seen.counts['_softmax'], seen.counts[KERNEL]) == (16, 8, 0)
    assert not any(seen.counts[name] for name in ('_safe_softmax', 'isneginf', 'where', 'eq'))
