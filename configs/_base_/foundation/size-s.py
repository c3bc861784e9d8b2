"""What the heads must know of a ViT-S: 12 layers of 384 channels. The adapter's sizes are those of ViT-Adapter-S."""

dims = 384
depth = 12
drop_path_rate = 0.2
out_indices = [3, 5, 7, 11]
window_size = [14, 14, None] * 4
# Options of a frozen backbone, where it is trained with others.
native = dict()
adapter = dict(
    deform_num_heads=6,
    deform_ratio=1.0,
    interaction_indexes=[[0, 2], [3, 5], [6, 8], [9, 11]],
)
