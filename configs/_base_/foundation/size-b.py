"""What the heads must know of a ViT-B: 12 layers of 768 channels. The adapter's sizes are those of ViT-Adapter-B."""

_base_ = './size-s.py'

dims = 768
drop_path_rate = 0.3
adapter = dict(deform_num_heads=12, deform_ratio=0.5)
