"""BigBird with LayerNorm on Long ListOps, 5000 iterations of 32 sequences.

Published (DTN, ICLR 2022, Table 4): Top 1 Accuracy 36.7.
"""

_base_ = './listops_transformer.py'

# Blocks of 64 tokens; every layer has random blocks of its own.
attention = [
    dict(
        type='mmlape.BigBirdAttention',
        block_size=64,
        num_random=3,
        seed=layer,
        qkv_bias=False,
        proj_bias=False,
    )
    for layer in range(6)
]
model = dict(backbone=dict(attention=attention))
del attention
