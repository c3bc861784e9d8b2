"""Reformer with LayerNorm on Long ListOps, 5000 iterations of 32 sequences.

Published (DTN, ICLR 2022, Table 4): Top 1 Accuracy 37.3.
"""

_base_ = './listops_transformer.py'

# 10 chunks of 2010 tokens, padding and class token included; as many buckets, one round of hashing.
model = dict(
    backbone=dict(
        attention=dict(
            type='mmlape.LSHAttention',
            chunk_size=201,
            num_buckets=10,
            num_rounds=1,
            qkv_bias=False,
            proj_bias=False,
        ),
    )
)
