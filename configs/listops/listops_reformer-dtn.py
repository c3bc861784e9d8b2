"""Reformer with DTN on Long ListOps, 5000 iterations of 32 sequences.

Published (DTN, ICLR 2022, Table 4): Top 1 Accuracy 37.8.
"""

_base_ = './listops_reformer.py'

# On the output the class token alone is read, which gets a LayerNorm from DTN too.
model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN', layers=6)))
