"""ViT-L of AugReg, pre-trained at 384 x 384, in ViT-Adapter-L, in the place of ``augreg-t.py``."""

_base_ = './augreg-b.py'

dims = 1024
vit_adapter = dict(
    vit=dict(
        arch=dict(_delete_=True, embed_dims=1024, depth=24, num_heads=16),
        drop_path_rate=0.4,
        init_cfg=dict(model='vit_large_patch16_384.augreg_in21k_ft_in1k'),
    ),
    deform_num_heads=16,
    interaction_indexes=[[0, 5], [6, 11], [12, 17], [18, 23]],
    with_cp=True,
)
