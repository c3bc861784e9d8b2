"""Attention, windows, the block and patch embedding. Values on odd grids: tests/test_frozen_values.py."""

import pytest
import torch

from mmlape.layers import Attention, PatchEmbed, SpatialReductionAttention


@pytest.mark.parametrize('window', [None, 2])
def test_an_empty_batch(window):
    assert Attention(8, 2, window_size=window)(torch.randn(0, 15, 8), (3, 5)).shape == (0, 15, 8)


def largest_saved(module, *arguments):
    """Values of the largest tensor that is saved for the backward pass."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        module(*arguments)
    return max(saved)


def test_no_map_of_scores_is_saved():
    tokens = torch.randn(1, 300, 8, requires_grad=True)
    assert largest_saved(Attention(8, 2), tokens, (1, 300)) < 300 * 300
    reduced = SpatialReductionAttention(8, 1, sr_ratio=2)
    assert largest_saved(reduced, torch.randn(1, 48 * 48, 8), (48, 48)) < 48 * 48 * 24 * 24 / 10


@pytest.mark.parametrize('shape', [(3, 16, 16), (1, 4, 16, 16), (1, 3, 0, 16)])
def test_no_image(shape):
    with pytest.raises(ValueError, match='image must have the shape'):
        PatchEmbed(3, 8, 16)(torch.zeros(shape))


def test_patch_embed_refuses_patches_smaller_than_the_stride():
    with pytest.raises(ValueError, match='patch_size must be at least the stride'):
        PatchEmbed(3, 8, 3, 4)
