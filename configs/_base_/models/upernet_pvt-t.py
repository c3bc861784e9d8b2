"""UPerNet on PVT-Tiny with the weights that its authors published for ImageNet-1K."""

_base_ = './upernet.py'

model = dict(
    backbone=dict(
        type='mmlape.PyramidVisionTransformer',
        arch='tiny',
        drop_path_rate=0.1,
        norm_cfg=dict(type='mmlape.LN', eps=1e-6),
        joining=dict(type='mmlape.DefaultJoining'),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='pvt',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth',
        ),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320),
)
