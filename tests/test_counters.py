"""What a forward pass of each family does, by counters that no other process can change: operators, bytes, waits."""

from collections import Counter
from functools import partial

import pytest
import torch
from backbone_variants import build_adapter, build_pvt, build_swin, build_vit
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.side_by_side import saved_bytes

NETWORKS = {
    'vit': build_vit,
    'pvt': build_pvt,
    'pvtv2': partial(build_pvt, 'V2'),
    'swin': build_swin,
    'adapter': build_adapter,
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
    return {name: build().train() for name, build in NETWORKS.items()}


def operators(network):
    image = torch.zeros(IMAGE)
    with torch.no_grad():
        network(image)  # what depends on the grid alone is kept
        with Operators() as seen:
            network(image)
    return seen.counts


# Of one pass without gradients: all operators at most, copies among them at most, and attention kernels.
PASSES = {
    'vit': (160, 1, 4),
    'pvt': (262, 4, 5),
    'pvtv2': (267, 4, 5),
    'swin': (443, 39, 6),
    # the image with channels last, ten of MMCV's sampling, and the crop of each map
    'adapter': (969, 15, 4),
}
COPIES = ('clone', 'copy', 'copy_', '_to_copy', 'constant_pad_nd')
KERNEL = '_scaled_dot_product_flash_attention_for_cpu'
# What one pass of it keeps for the backward pass, parameters included, at most.
SAVED = {'vit': 610e3, 'pvt': 1097e3, 'pvtv2': 1342e3, 'swin': 1832e3, 'adapter': 5637e3}


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
    assert (seen.counts['bmm'], seen.counts['_softmax'], seen.counts[KERNEL]) == (12, 6, 0)
    assert not any(seen.counts[name] for name in ('_safe_softmax', 'isneginf', 'where', 'eq'))
