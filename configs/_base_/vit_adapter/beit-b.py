"""BEiT-B (ImageNet-22K) in ViT-Adapter-B, in the place of ``beit-l.py``."""

_base_ = './beit-l.py'

dims = 768
vit_adapter = dict(
    vit=dict(arch='beit_base_patch16_224.in22k_ft_in22k', drop_path_rate=0.2),
    deform_num_heads=12,
    interaction_indexes=[[0, 2], [3, 5], [6, 8], [9, 11]],
    with_cp=False,
)
