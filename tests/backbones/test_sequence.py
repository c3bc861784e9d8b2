"""Transformers for sequences: ids in, padding that changes nothing, with every attention and norm."""

import math

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn

from mmlape.layers import TokenEmbed
from mmlape.registry import MODELS

ARCH = dict(embed_dims=16, depth=2, num_heads=4, mlp_ratio=2)
ATTENTIONS = {
    'transformer': None,
    'bigbird': dict(type='mmlape.BigBirdAttention', block_size=4, num_random=1),
    'reformer': dict(type='mmlape.LSHAttention', chunk_size=4, num_buckets=6, num_rounds=2),
}
NORMS = {
    'LN': dict(type='mmlape.LN'),
    'BN': dict(type='mmlape.TokenBN'),
    'IN': dict(type='mmlape.TokenIN'),
    'GN': dict(type='mmlape.TokenGN', num_groups='heads'),
    'ScaleNorm': dict(type='mmlape.ScaleNorm'),
    'DTN': dict(type='mmlape.DTN'),
    'DTN-band': dict(type='mmlape.DTN', positions='banded', band=5),
}
LENGTHS = (9, 31, 40)
IDS = torch.randint(1, 16, (3, 1, 1, 40), generator=torch.Generator().manual_seed(0))
PADDED = IDS * (torch.arange(40) < torch.tensor(LENGTHS)[:, None, None, None])


def build(**options):
    config = dict(type='mmlape.SequenceTransformer', arch=ARCH, out_type='raw')
    model = MODELS.build({**config, **options})
    for name, parameter in model.named_parameters():
        # maps of DTN stay near what they start from: those that look nowhere but at padding see all tokens
        nn.init.normal_(parameter, std=0.3) if '.positions.' not in name else parameter
    return model


@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('attention', ATTENTIONS)
def test_padding_changes_no_token(attention, norm):
    """More of it, none of it, and in training too, where batches have statistics; as images and as numbers."""
    model = build(attention=ATTENTIONS[attention], norm_cfg=NORMS[norm])
    longer = nn.functional.pad(PADDED, (0, 64)).float()
    for training in (True, False):
        model.train(training)
        ((out,), (other,)) = model(PADDED), model(longer)
        assert other.isfinite().all()
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(
                out[row, : length + 1], other[row, : length + 1], atol=2e-5, rtol=1e-4
            )
    for row, length in enumerate(LENGTHS):  # alone
        (alone,) = model(PADDED[row : row + 1, ..., :length])
        torch.testing.assert_close(out[row, : length + 1], alone[0], atol=2e-5, rtol=1e-4)


def test_padding_takes_no_gradient():
    model = build(norm_cfg=NORMS['DTN'], out_type='cls_token')
    model(PADDED)[0].square().sum().backward()
    gradient = model.patch_embed.embedding.weight.grad
    taught = (gradient != 0).any(dim=1).nonzero().flatten().tolist()
    assert taught == sorted(set(PADDED.unique().tolist()) - {0})


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
    with pytest.raises(ValueError, match='warmup must be at least 1, got 0'):
        PARAM_SCHEDULERS.build(dict(config, warmup=0), default_args=dict(optimizer=optimizer))
