"""Reformer with GroupNorm on Long ListOps, 5000 iterations of 32 sequences.

Published (DTN, ICLR 2022, Table 4): Top 1 Accuracy 37.4.
"""

_base_ = './listops_reformer.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.TokenGN', num_groups='heads')))
