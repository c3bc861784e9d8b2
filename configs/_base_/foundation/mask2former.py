"""Mask2Former's head, for both toolboxes, under a name of its own: ``mask2former``.

As in MMDetection and MMSegmentation; matching and losses are in float32, also under ``--amp``. A config adds the type,
the number of classes and of queries, and channels.
"""

sine = dict(num_feats=128, normalize=True)
attention = dict(embed_dims=256, num_heads=8, batch_first=True)
mask2former = dict(
    strides=[4, 8, 16, 32],
    feat_channels=256,
    out_channels=256,
    num_transformer_feat_level=3,
    pixel_decoder=dict(
        type='mmdet.MSDeformAttnPixelDecoder',
        num_outs=3,
        norm_cfg=dict(type='GN', num_groups=32),
        act_cfg=dict(type='ReLU'),
        encoder=dict(
            num_layers=6,
            layer_cfg=dict(
                self_attn_cfg=dict(attention, num_levels=3, num_points=4, dropout=0.0),
                ffn_cfg=dict(
                    embed_dims=256,
                    feedforward_channels=1024,
                    num_fcs=2,
                    ffn_drop=0.0,
                    act_cfg=dict(type='ReLU', inplace=True),
                ),
            ),
        ),
        positional_encoding=sine,
    ),
    enforce_decoder_input_project=False,
    positional_encoding=sine,
    transformer_decoder=dict(
        return_intermediate=True,
        num_layers=9,
        layer_cfg=dict(
            self_attn_cfg=attention,
            cross_attn_cfg=attention,
            ffn_cfg=dict(
                embed_dims=256,
                feedforward_channels=2048,
                num_fcs=2,
                ffn_drop=0.0,
                act_cfg=dict(type='ReLU', inplace=True),
            ),
        ),
        init_cfg=None,
    ),
    loss_mask=dict(
        type='mmdet.CrossEntropyLoss', use_sigmoid=True, reduction='mean', loss_weight=5.0
    ),
    loss_dice=dict(
        type='mmdet.DiceLoss',
        use_sigmoid=True,
        activate=True,
        reduction='mean',
        naive_dice=True,
        eps=1.0,
        loss_weight=5.0,
    ),
)
# Errors of classes; "no object", which is added to them, counts a tenth.
loss_cls = dict(type='mmdet.CrossEntropyLoss', use_sigmoid=False, reduction='mean', loss_weight=2.0)
matching = dict(
    num_points=12544,
    oversample_ratio=3.0,
    importance_sample_ratio=0.75,
    assigner=dict(
        type='mmlape.HungarianAssigner',
        match_costs=[
            dict(type='mmdet.ClassificationCost', weight=2.0),
            dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
            dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
        ],
    ),
    sampler=dict(type='mmdet.MaskPseudoSampler'),
)
# AdamW with learning rates that fall by 0.8 per layer (EoMT, CVPR 2025, for this head); the rest is Mask2Former's.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(
        decay_rate=0.8,
        custom_keys={
            name: dict(decay_mult=0.0) for name in ('query_embed', 'query_feat', 'level_embed')
        },
    ),
    clip_grad=dict(max_norm=0.01, norm_type=2),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
del sine, attention
