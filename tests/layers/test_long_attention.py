"""BigBird's and Reformer's attention: equal to transformers' and to dense references, and blind to padding."""

import pytest
import torch

from mmlape.layers import Attention, BigBirdAttention, LSHAttention
from mmlape.layout import Layout
from mmlape.registry import MODELS


def reformer():
    return LSHAttention(16, 4, chunk_size=4, num_buckets=6, num_rounds=2)


def ours(kind, known):
    """The layer of known values, whose output is what heads read."""
    meta, state = dict(known.meta), known.state
    meta.pop('transformers')
    channels = known.arrays['input'].shape[-1]
    if kind == 'bigbird':
        layer = BigBirdAttention(channels, **meta)
        parts = {
            f'qkv.{name}': torch.cat(
                [state[f'{part}.{name}'] for part in ('query', 'key', 'value')]
            )
            for name in ('weight', 'bias')
        }
    else:
        layer = LSHAttention(channels, qkv_bias=False, **meta)
        parts = {
            'qk.weight': state['query_key.weight'],
            'v.weight': state['value.weight'],
            'rotations': known.arrays['rotations'],
        }
    parts.update({'proj.weight': torch.eye(channels), 'proj.bias': torch.zeros(channels)})
    layer.load_state_dict(parts)
    return layer


@pytest.mark.parametrize('padded', ['', '_padded'])
@pytest.mark.parametrize('kind', ['bigbird', 'reformer'])
def test_equals_transformers(kind, padded, golden):
    known = golden(kind + padded)
    layer, mask = ours(kind, known), known.arrays['mask']
    tokens = known.arrays['input'].requires_grad_()
    out = layer(tokens, Layout((1, tokens.shape[1]), mask=mask if padded else None))
    # theirs are zero at padding, or anything
    torch.testing.assert_close(out[mask], known.arrays['output'][mask], atol=1e-4, rtol=0)
    if kind == 'bigbird' and not padded:
        chosen, *_ = layer.key_blocks(torch.ones(1, 12, dtype=torch.bool))
        assert torch.equal(chosen[0, :, 1:-1, -2:].float(), known.arrays['plan'])
    if not padded:
        (out * known.arrays['cotangent']).sum().backward()
        torch.testing.assert_close(tokens.grad, known.arrays['grad/input'], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize('count', [3, 9, 20])
def test_bigbird_with_all_blocks_chosen_is_full_attention(count):
    """Up to five blocks: the first, the last and three in the window."""
    full = Attention(16, 4)
    sparse = BigBirdAttention(16, 4, block_size=4, num_random=2)
    sparse.load_state_dict(full.state_dict())
    tokens, layout = torch.randn(2, count, 16), Layout((1, count - 1), 1)
    torch.testing.assert_close(sparse(tokens, layout), full(tokens, layout))


def test_bigbird_reads_what_the_paper_says():
    """Against full attention with a dense mask: global, window and random blocks of every head."""
    layer = BigBirdAttention(16, 2, block_size=3, window=3, num_random=2, seed=1)
    tokens = torch.randn(2, 40, 16)
    blocks = 14  # the last of them with one token
    chosen, counts, _ = layer.key_blocks(torch.ones(1, blocks, dtype=torch.bool))
    reads = torch.zeros(2, blocks, blocks, dtype=torch.bool)
    for head, query in ((h, q) for h in range(2) for q in range(blocks)):
        index = chosen[0, head, query][counts[0, head, query]]
        assert len(set(index.tolist())) == len(index), 'no block twice'
        around = {0, blocks - 1} | {k for k in range(blocks) if abs(k - query) < 2}
        assert around <= set(index.tolist()) and len(index) == len(around) + 2
        reads[head, query, index] = True
    reads[:, [0, -1]] = True
    assert not torch.equal(reads[0], reads[1]), 'another choice for every head'
    dense = reads.repeat_interleave(3, 1).repeat_interleave(3, 2)[:, :40, :40]
    query, key, value = layer.split_heads(layer.qkv(tokens), 3)
    read = torch.nn.functional.scaled_dot_product_attention(query, key, value, dense)
    expected = layer.project(read.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(tokens, Layout((5, 8))), expected)


def brute_force(layer, tokens):
    """Reformer's attention, token by token (section 2)."""
    (query,), (value,) = (layer.split_heads(part(tokens), 1) for part in (layer.qk, layer.v))
    batch, heads, count, _ = query.shape
    out = torch.zeros_like(value)
    for b, h in ((b, h) for b in range(batch) for h in range(heads)):
        q, v = query[b, h], value[b, h]
        read, found = [], []
        for turn in layer.rotations[h].unbind(1):
            bucket = torch.cat([q @ turn, -q @ turn], dim=1).argmax(dim=1).tolist()
            order = sorted(range(count), key=lambda token: (bucket[token], token))
            chunks = [order[i : i + layer.chunk_size] for i in range(0, count, layer.chunk_size)]
            reads, normalisers = torch.zeros_like(v), torch.zeros(count)
            for number, chunk in enumerate(chunks):
                for token in chunk:
                    seen = [other for other in chunk + chunks[number - 1] if other != token]
                    scores = q[seen] @ q[token] / q[seen].norm(dim=1)
                    reads[token] = scores.softmax(0) @ v[seen]
                    normalisers[token] = scores.logsumexp(0)
            read.append(reads)
            found.append(normalisers)
        share = torch.stack(found).softmax(0)
        out[b, h] = (share[..., None] * torch.stack(read)).sum(0)
    return layer.project(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize('count', [9, 21, 24])
def test_lsh_is_what_the_paper_says(count):
    """Several rounds, and a last chunk that is not full."""
    layer, tokens = reformer(), torch.randn(2, count, 16)
    torch.testing.assert_close(layer(tokens, (1, count)), brute_force(layer, tokens))


def test_a_token_alone_reads_itself():
    layer, tokens = reformer(), torch.randn(2, 1, 16)
    torch.testing.assert_close(layer(tokens, (1, 1)), layer.proj(layer.v(tokens)))


@pytest.mark.parametrize('name', ['BigBirdAttention', 'LSHAttention'])
def test_positions_inside_are_refused(name):
    config = dict(
        type='mmlape.VisionTransformer',
        arch=dict(embed_dims=16, depth=1, num_heads=4),
        attention=dict(type=f'mmlape.{name}'),
    )
    refused = pytest.raises(ValueError, match=f'{name} takes no position inside the attention')
    for position in ('RotaryPosition', 'RelativePositionBias'):
        with refused:
            MODELS.build(dict(config, attention_position=dict(type=f'mmlape.{position}')))
