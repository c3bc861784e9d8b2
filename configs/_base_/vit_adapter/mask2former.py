"""Mask2Former for label maps, 256 channels, with the optimizer of ViT-Adapter-B around BEiT.

Learning rates fall by 0.95 per layer. The authors count the head's queries and last layers with the first layer of the
backbone: they learn at ``lr * 0.95 ** 13``. A row adds backbone, channels, classes and crops.
"""

_base_ = '../foundation/mask2former.py'

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
    ),
    decode_head=dict(
        _base_.mask2former,
        type='mmlape.Mask2FormerSegHead',
        num_queries=100,
        align_corners=False,
        loss_cls=_base_.loss_cls,
        train_cfg=_base_.matching,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='slide'),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=3e-5, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(
        decay_rate=0.95,
        custom_keys={
            'decode_head.cls_embed.weight': dict(lr_mult=0.95**13),
            'decode_head.cls_embed.bias': dict(lr_mult=0.95**13, decay_mult=0.0),
            'decode_head.mask_embed': dict(lr_mult=0.95**13),
            'decode_head.mask_embed.0.bias': dict(lr_mult=0.95**13, decay_mult=0.0),
            'decode_head.mask_embed.2.bias': dict(lr_mult=0.95**13, decay_mult=0.0),
            'decode_head.mask_embed.4.bias': dict(lr_mult=0.95**13, decay_mult=0.0),
            'decode_head.level_embed': dict(lr_mult=0.95**13),
            'decode_head.query_embed': dict(lr_mult=0.95**13),
            'decode_head.query_feat': dict(lr_mult=0.95**13),
        },
    ),
)
