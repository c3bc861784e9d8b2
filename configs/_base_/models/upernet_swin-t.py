"""UPerNet on Swin-T with the weights that its authors published for ImageNet-1K; images are tested whole."""

_base_ = './upernet.py'

model = dict(
    backbone=dict(
        type='mmlape.SwinTransformer',
        arch='tiny',
        drop_path_rate=0.3,
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='swin',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth',
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
    test_cfg=dict(_delete_=True, mode='whole'),
)
