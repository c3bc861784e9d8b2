"""Segmenter (mask transformer, 2 layers) on DeiT-Ti with patches of 16 and 512 x 512 crops.

DeiT's weights were trained with ImageNet's mean and standard deviation, so these are used here; MMSegmentation's own
Segmenter configs start from other weights and use 127.5 for both.
"""

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(
        type='mmlape.VisionTransformer',
        arch='deit-tiny',
        img_size=512,
        patch_size=16,
        drop_path_rate=0.1,
        joining=dict(type='mmlape.DefaultJoining'),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='deit',
            checkpoint='https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth',
        ),
    ),
    decode_head=dict(
        type='SegmenterMaskTransformerHead',
        in_channels=192,
        channels=192,
        embed_dims=192,
        num_heads=3,
        num_layers=2,
        num_classes=150,
        dropout_ratio=0.0,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(480, 480)),
)
