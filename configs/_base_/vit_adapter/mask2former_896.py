"""``mask2former_wide.py`` for crops of 896 x 896: 200 queries, 16 GPUs x 1 image."""

_base_ = './mask2former_wide.py'

model = dict(decode_head=dict(num_queries=200))
