"""Transformers for sequences: token ids, padding, and the schedule of their learning rate. See tests/test_masks.py."""

import math

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn

from mmlape.backbones import SequenceTransformer
from mmlape.layers import TokenEmbed


def test_ids_and_masks():
    stem = TokenEmbed(embed_dims=4, vocab_size=6)
    tokens, layout = stem(torch.tensor([[[[5, 2, 0]]]]))
    assert torch.equal(tokens[0], stem.embedding.weight[[5, 2, 0]])
    assert layout.grid == (1, 3) and layout.mask.tolist() == [[True, True, False]]
    assert TokenEmbed(padding_id=None)(torch.zeros(1, 1, 1, 3))[1].mask is None
    with pytest.raises(
        ValueError, match=r'token ids must have the shape \(batch, 1, height, width\)'
    ):
        stem(torch.zeros(1, 3))
    with pytest.raises(IndexError):
        stem(torch.full((1, 1, 1, 3), 6))


def test_padding_changes_no_sequence_of_long_list_ops():
    """With DTN as it starts: a map that looks at the far end of a sequence would see its padding alone."""
    torch.manual_seed(1)
    norm_cfg = dict(type='mmlape.DTN', layers=2)
    model = SequenceTransformer(out_type='cls_token', norm_cfg=norm_cfg, out_indices=1).eval()
    ids = torch.zeros(1, 1, 1, 700, dtype=torch.long)
    ids[..., :501].random_(1, 16)
    padded, alone = model(ids)[0], model(ids[..., :501])[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-4)
    assert model.blocks[0].norm1.num_heads == 4 and model.blocks[0].attn.num_heads == 8


def test_warm_up_and_decay_of_the_learning_rate():
    """0.05 min(1, t / 1000) / sqrt(max(t, 1000)) of Long-Range Arena."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.05 / math.sqrt(1000))
    config = dict(type='mmlape.RsqrtLR', warmup=1000, by_epoch=False)
    scheduler = PARAM_SCHEDULERS.build(config, default_args=dict(optimizer=optimizer))
    for step in range(3001):
        expected = 0.05 * min(1, step / 1000) / math.sqrt(max(step, 1000))
        assert optimizer.param_groups[0]['lr'] == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        scheduler.step()
    by_epoch = dict(
        config, by_epoch=True, convert_to_iter_based=True, begin=2, end=7, epoch_length=5
    )
    scheduler = PARAM_SCHEDULERS.build(by_epoch, default_args=dict(optimizer=optimizer))
    assert (scheduler.begin, scheduler.end, scheduler.by_epoch) == (10, 35, False)
    with pytest.raises(ValueError, match='warmup must be at least 1, got 0'):
        PARAM_SCHEDULERS.build(dict(config, warmup=0), default_args=dict(optimizer=optimizer))
