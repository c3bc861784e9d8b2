"""``mask2former.py`` with the optimizer of ViT-Adapter-L around BEiT: rates fall by 0.9 over 24 layers."""

_base_ = './mask2former.py'

optim_wrapper = dict(
    optimizer=dict(lr=2e-5),
    paramwise_cfg=dict(
        decay_rate=0.9,
        custom_keys={
            'decode_head.cls_embed.weight': dict(lr_mult=0.9**25),
            'decode_head.cls_embed.bias': dict(lr_mult=0.9**25),
            'decode_head.mask_embed': dict(lr_mult=0.9**25),
            'decode_head.mask_embed.0.bias': dict(lr_mult=0.9**25),
            'decode_head.mask_embed.2.bias': dict(lr_mult=0.9**25),
            'decode_head.mask_embed.4.bias': dict(lr_mult=0.9**25),
            'decode_head.level_embed': dict(lr_mult=0.9**25),
            'decode_head.query_embed': dict(lr_mult=0.9**25),
            'decode_head.query_feat': dict(lr_mult=0.9**25),
        },
    ),
)
