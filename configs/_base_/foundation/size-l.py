"""What the heads must know of a ViT-L: 24 layers of 1024 channels. The adapter's sizes are those of ViT-Adapter-L."""

_base_ = './size-s.py'

dims = 1024
depth = 24
drop_path_rate = 0.4
out_indices = [7, 11, 15, 23]
window_size = [14, 14, 14, 14, 14, None] * 4
adapter = dict(
    with_cp=True,
    deform_num_heads=16,
    deform_ratio=0.5,
    interaction_indexes=[[0, 5], [6, 11], [12, 17], [18, 23]],
)
