"""Transformer with LayerNorm on Long ListOps, 5000 iterations of 32 sequences.

Published (DTN, ICLR 2022, Table 4): Top 1 Accuracy 36.4.
"""

_base_ = [
    '../_base_/models/classifier_lra-transformer.py',
    '../_base_/datasets/list-ops.py',
    '../_base_/default_runtime_mmpretrain_iterations.py',
    '../_base_/schedules/schedule_listops.py',
]
