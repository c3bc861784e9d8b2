"""BEiT-L (ImageNet-22K) in ViT-Adapter-L, the detection flavour.

Five layers have windows of 14 x 14 patches, every sixth of 56 x 56, each with a relative table of its window; grids are
padded before the projection.
"""

_base_ = './beit-l.py'

vit_adapter = dict(
    vit=dict(
        with_cls_token=False,
        attention_position=dict(
            type='mmlape.RelativePositionBias', prefix_scores=False, resize='geometric'
        ),
        attention=dict(type='mmlape.ShiftedWindowAttention'),
        window_size=[14, 14, 14, 14, 14, 56] * 4,
        drop_path_rate=0.4,
    ),
    vit_feature='last',
    with_cp=False,
)
