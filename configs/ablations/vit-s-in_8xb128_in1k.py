"""ViT-S with InstanceNorm in its first 10 layers, and the class token after them. ImageNet-1K, 300 epochs.

The comparison of norms of DTN's paper: any norm that mixes tokens, or that it is compared with, stands where DTN does.
Published (DTN, ICLR 2022, Table 3): Top 1 Accuracy 77.7.
"""

_base_ = '../imagenet/deit-s_8xb128_in1k.py'

model = dict(
    backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.TokenIN', layers=10), prefix_after=10)
)
